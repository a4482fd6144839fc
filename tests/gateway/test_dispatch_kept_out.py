"""Workers that fail are kept out for a while, and let back by one request that tries them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.kept_out import FIRST_PAUSE_S
from protocol.messages import PrefillRequest, Reserve
from tests.support.dispatch_rig import QUICK, Reader, Rig, read, rig, run, tokens
from tests.support.scripted_worker import ScriptedWorker


async def _failing_once(r: Rig) -> tuple[ScriptedWorker, ScriptedWorker]:
    """Two decode workers, the better one of which fails a request."""
    d1, d2 = await r.decode("d1"), await r.decode("d2", free_blocks=500)
    d1.habits.stall_decode_at = 2
    reader = Reader(await r.submit(max_tokens=4))
    await reader.until(2)
    d1.fail("engine_failed")
    assert await reader.all() == [tokens(0, 4)]
    d1.habits.stall_decode_at = 1 << 30
    return d1, d2


def test_a_worker_that_failed_gets_no_work_and_then_one_request_and_then_more() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill()
            d1, d2 = await _failing_once(r)
            assert r.counts.kept_out_for == [("decode", "engine_failed")]
            assert r.counts.num_absent == 1
            assert [(each.code, each.worker) for each in r.dispatcher.health().reasons] == [("worker_kept_out", "d1")]
            seen = len(d1.of(Reserve))
            for _ in range(4):
                await read(await r.submit())
            assert len(d1.of(Reserve)) == seen
            await asyncio.sleep(FIRST_PAUSE_S)
            d1.habits.stall_decode_at = 0
            probe = await r.submit()
            await r.until(lambda: len(d1.of(Reserve)) == seen + 1)
            assert r.dispatcher.counts()["probes"] == 1
            for _ in range(3):
                await read(await r.submit())
            assert len(d1.of(Reserve)) == seen + 1, "one at a time"
            d1.habits.stall_decode_at = 1 << 30
            probe.cancel("test")
            await read(await r.submit())
            assert r.counts.num_absent == 0
            assert not r.dispatcher.health().reasons
            assert d2.of(Reserve)
            await r.all_let_go()

    run(work())


def test_a_probe_that_fails_is_moved_like_any_other_request() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill()
            d1, _ = await _failing_once(r)
            await asyncio.sleep(FIRST_PAUSE_S)
            d1.habits.stall_decode_at = 2
            reader = Reader(await r.submit(max_tokens=4))
            await reader.until(2)
            d1.fail("engine_failed")
            await r.until(lambda: bool(r.dispatcher._desk.kept_out.absences()))
            (absence,) = r.dispatcher._desk.kept_out.absences()
            assert 1.9 < absence.left_s <= 2.0
            assert await reader.all() == [tokens(0, 4)]
            assert r.counts.num_absent == 1
            await r.all_let_go()

    run(work())


def test_the_last_worker_is_tried_at_once_however_often_it_failed() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill()
            d = await r.decode()
            d.habits.stall_decode_at = 2
            reader = Reader(await r.submit(max_tokens=4))
            await reader.until(2)
            d.habits.stall_decode_at = 1 << 30
            d.fail("engine_failed")
            assert await reader.all() == [tokens(0, 4)]
            assert await read(await r.submit(max_tokens=4)) == [tokens(0, 4)]
            assert r.counts.outcomes[0].spent_s["queue"] == 0

    run(work())


def test_of_workers_that_are_all_out_the_one_that_has_been_out_longest_is_tried() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill()
            first, second = [await r.decode(f"d{number}") for number in (1, 2)]
            out = r.dispatcher._desk.kept_out
            out.failed(second.me, "decode", "r", "engine_failed")
            await asyncio.sleep(0.1)
            out.failed(first.me, "decode", "r", "engine_failed")
            assert await read(await r.submit(max_tokens=4)) == [tokens(0, 4)]
            assert second.of(Reserve)
            assert not first.of(Reserve)

    run(work())


def test_while_the_only_prefill_worker_is_out_short_prompts_fall_back() -> None:
    async def work() -> None:
        async with rig() as r:
            p = await r.prefill()
            await r.decode(local_prefill_tokens=64)
            p.habits.stall_prefill = True
            task = Reader(await r.submit(max_tokens=4, prompt=32))
            await r.until(lambda: p.held)
            p.fail("engine_failed", "prefill")
            assert await task.all() == [tokens(0, 4)]
            assert r.counts.paths == ["split", "fallback"]
            p.habits.stall_prefill = False
            assert await read(await r.submit(max_tokens=4, prompt=32)) == [tokens(0, 4)]
            assert r.counts.paths[-1] == "fallback"
            assert await read(await r.submit(max_tokens=4, prompt=400)) == [tokens(0, 4)]
            assert r.counts.paths[-1] == "split", "over the budget the last prefill worker is tried"
            await r.all_let_go()

    run(work())


@pytest.mark.parametrize("deaf", ["prefill", "decode"])
def test_a_worker_that_lives_and_does_not_answer_loses_the_request_and_is_kept_out(deaf: str) -> None:
    async def work() -> None:
        async with rig(replace(QUICK, answer_s=3.0)) as r:
            p1, p2 = await r.prefill("p1"), await r.prefill("p2", waiting_tokens=9)
            d1, d2 = await r.decode("d1"), await r.decode("d2", free_blocks=900)
            silent, other = (p1, p2) if deaf == "prefill" else (d1, d2)
            silent.habits.deaf_to = (PrefillRequest, Reserve)
            p1.habits.stall_handover = deaf == "decode"
            task = await r.submit(max_tokens=4)
            await asyncio.sleep(1.0)
            p1.habits.stall_handover = False
            assert await read(task) == [tokens(0, 4)]
            assert other.heard
            assert r.counts.kept_out_for == [(deaf, "worker_lost")]
            await r.nothing_left()

    run(work())


def test_a_transfer_that_failed_is_held_against_the_side_that_its_reporter_names() -> None:
    async def work() -> None:
        async with rig() as r:
            p = await r.prefill()
            d1, d2 = await r.decode("d1"), await r.decode("d2", free_blocks=900)
            p.habits.stall_handover = True
            reader = Reader(await r.submit(max_tokens=4))
            await reader.until(1)
            p.habits.stall_handover = False
            p.fail("transfer_failed", "transfer")
            assert await reader.all() == [tokens(0, 4)]
            assert r.counts.kept_out_for == [("decode", "transfer_failed")]
            assert d2.of(Reserve)
            assert d1.of(Reserve)
            await r.all_let_go()

    run(work())
