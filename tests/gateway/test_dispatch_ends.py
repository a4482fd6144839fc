"""Deadlines and cancels: every request ends once, and nothing of it stays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.dispatch_settings import DispatchSettings
from gateway.generation import Generation
from protocol.messages import Cancel, PrefillRequest, Released
from protocol.sampling import Sampling
from tests.support.dispatch_rig import QUICK, Reader, read, rig, run, tokens
from tests.support.scripted_worker import ScriptedWorker


def _short(phase: str) -> DispatchSettings:
    return {
        "prefill": replace(QUICK, prefill_s=0.03),
        "transfer": replace(QUICK, transfer_s=0.03),
        "decode": replace(QUICK, decode_s=0.03),
    }[phase]


def _stall(phase: str, p: ScriptedWorker, d: ScriptedWorker) -> None:
    p.habits.stall_prefill = phase == "prefill"
    p.habits.stall_handover = phase == "transfer"
    d.habits.stall_decode_at = 2


@pytest.mark.parametrize("phase", ["prefill", "transfer", "decode"])
def test_a_phase_that_takes_too_long_ends_in_a_504_that_names_it(phase: str) -> None:
    async def work() -> None:
        async with rig(_short(phase)) as r:
            p, d = await r.prefill(), await r.decode()
            _stall(phase, p, d)
            error = await Reader(await r.submit()).failed()
            assert (error.status, error.code) == (504, "deadline_exceeded")
            assert phase in error.message
            assert [(o.kind, o.phase) for o in r.counts.outcomes] == [("deadline", phase)]
            await r.nothing_left()
            assert p.of(Cancel)
            assert d.of(Cancel)
            assert not p.held
            assert not d.held

    run(work())


def test_a_deadline_that_passes_at_a_worker_is_one_too() -> None:
    async def work() -> None:
        async with rig() as r:
            p, _ = await r.prefill(), await r.decode()
            p.habits.stall_prefill = True
            stream = await r.submit()
            await r.until(lambda: p.held)
            p.fail("deadline_exceeded", "prefill")
            assert (await Reader(stream).failed()).status == 504
            assert r.counts.outcomes[0].kind == "deadline"

    run(work())


@pytest.mark.parametrize("phase", ["prefill", "transfer", "decode"])
@pytest.mark.parametrize("lost", [False, True])
def test_a_cancel_reaches_both_workers_in_every_phase(phase: str, lost: bool) -> None:
    async def work() -> None:
        async with rig() as r:
            p, d = await r.prefill(), await r.decode()
            _stall(phase, p, d)
            stream = await r.submit()
            reader = Reader(stream)
            await r.until(lambda: stream._clock.phase == phase)  # type: ignore[attr-defined]
            p.habits.release = not lost
            stream.cancel("client left")
            stream.cancel("again")
            assert (await reader.failed()).code == "cancelled"
            if lost:
                await r.until(lambda: len(p.of(Cancel)) > 1)
                p.habits.release = True
            await r.nothing_left()
            assert not p.held
            assert not d.held
            assert [o.kind for o in r.counts.outcomes] == ["cancelled"]

    run(work())


def test_a_cancel_to_a_dead_worker_is_not_repeated() -> None:
    async def work() -> None:
        async with rig() as r:
            p, d = await r.prefill(), await r.decode()
            d.habits.stall_decode_at = 2
            p.habits.release = d.habits.release = False
            stream = await r.submit()
            await Reader(stream).until(2)
            stream.cancel("test")
            assert r.dispatcher.counts()["cancels"] == 2
            p.die()
            await r.until(lambda: r.dispatcher.counts()["cancels"] == 1)
            d.postbox.send(r.postbox.me, Released(stream.request_id, 1))
            await r.nothing_left()

    run(work())


def test_after_its_end_a_request_is_cancelled_in_vain() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill()
            d = await r.decode()
            stream = await r.submit()
            await read(stream)
            stream.cancel("too late")
            stream.stop(0, 1)
            await r.all_let_go()
            assert not d.of(Cancel)
            assert [o.kind for o in r.counts.outcomes] == ["finished"]

    run(work())


def test_the_unknown_answer_to_wanted_moves_the_request() -> None:
    async def work() -> None:
        async with rig(replace(QUICK, ask_s=0.02)) as r:
            await r.prefill()
            d1 = await r.decode("d1")
            await r.decode("d2", free_blocks=900)
            d1.habits.stall_decode_at = 3
            reader = Reader(await r.submit(max_tokens=6))
            await reader.until(3)
            for key in list(d1.held):
                d1._drop(key)
            assert await reader.all() == [tokens(0, 6)]
            assert r.counts.moves == [("decode", "unknown")]
            await r.all_let_go()

    run(work())


def test_many_requests_leave_nothing_behind() -> None:
    async def work() -> None:
        async with rig() as r:
            for number in range(2):
                await r.prefill(f"p{number}")
                await r.decode(f"d{number}")
            streams = [await r.submit(max_tokens=8, prompt=16 + number) for number in range(40)]
            for stream in streams:
                assert await read(stream) == [tokens(0, 8)]
            await r.all_let_go()
            used = {w.me.id for w in r.workers if w.heard}
            assert used == {"p0", "p1", "d0", "d1"}

    run(work())


def test_closing_ends_what_is_open_and_tells_the_workers() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill()
            d = await r.decode()
            d.habits.stall_decode_at = 2
            reader = Reader(await r.submit())
            await reader.until(2)
            r.dispatcher.close()
            assert (await reader.failed()).code == "draining"
            assert r.counts.outcomes[0].kind == "cancelled"
            await r.until(lambda: d.of(Cancel))
            r.dispatcher.close()

    run(work())


def test_a_workers_prefix_is_remembered_for_the_next_request() -> None:
    async def work() -> None:
        async with rig() as r:
            p1, p2 = await r.prefill("p1"), await r.prefill("p2")
            await r.decode()
            prompt = tuple(range(100, 196))
            await read(await r.submit(prompt=prompt))
            (owner,) = [p for p in (p1, p2) if p.heard]
            for _ in range(3):
                await read(await r.submit(prompt=(*prompt, 1, 2, 3)))
                owner.beat()
            assert len(owner.of(PrefillRequest)) == 4
            await read(await r.submit(prompt=prompt, salt="another tenant"))
            assert len(owner.of(PrefillRequest)) == 4

    run(work())


def test_generations_are_taken_as_the_http_side_makes_them() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill(), await r.decode()
            generation = Generation((1, 2, 3), 1, Sampling(max_tokens=2), label="x" * 1000)
            assert await read(await r.dispatcher.submit(generation)) == [tokens(0, 2)]

    run(work())
