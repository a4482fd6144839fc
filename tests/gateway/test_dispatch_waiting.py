"""Waiting for room: in order, bounded, and not for ever."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.errors import GatewayError
from protocol.messages import Cancel, PrefillRequest
from tests.support.dispatch_rig import QUICK, Reader, Rig, read, rig, run, tokens
from tests.support.scripted_worker import ScriptedWorker


async def full_pair(r: Rig) -> tuple[ScriptedWorker, ScriptedWorker]:
    """A prefill worker, and a decode worker whose heartbeat says that it has no room."""
    return await r.prefill(), await r.decode(free_blocks=2)


def test_without_room_a_request_waits_for_a_heartbeat_that_shows_some() -> None:
    async def work() -> None:
        async with rig() as r:
            p, d = await full_pair(r)
            waiting = asyncio.ensure_future(r.submit(max_tokens=4))
            await r.until(lambda: r.dispatcher.counts()["waiting"])
            d.beat(free_blocks=2)
            await r.until(lambda: True)
            assert not p.heard
            d.beat(free_blocks=100)
            assert await read(await waiting) == [tokens(0, 4)]
            await r.all_let_go()
            assert r.counts.outcomes[0].spent_s["queue"] > 0

    run(work())


def test_refused_everywhere_for_space_a_request_waits_and_its_workers_are_let_go() -> None:
    async def work() -> None:
        async with rig() as r:
            p, d = await r.prefill(), await r.decode()
            d.habits.refuse = "no_space"
            p.habits.stall_handover = True
            stream = await r.submit(max_tokens=4)
            await r.until(lambda: r.dispatcher.counts()["waiting"])
            await r.until(lambda: p.of(Cancel) and not p.held)
            d.habits.refuse, p.habits.stall_handover = "", False
            d.beat()
            assert await read(stream) == [tokens(0, 4)]
            assert stream.num_attempts == 2
            await r.all_let_go()

    run(work())


def test_who_waits_is_served_in_order_of_arrival() -> None:
    async def work() -> None:
        async with rig() as r:
            p, d = await full_pair(r)
            d.habits.stall_decode_at = 2
            big = asyncio.ensure_future(r.submit(prompt=320))
            await r.until(lambda: r.dispatcher.counts()["waiting"] == 1)
            small = asyncio.ensure_future(r.submit(prompt=16))
            await r.until(lambda: r.dispatcher.counts()["waiting"] == 2)
            d.beat(free_blocks=10)
            await r.until(lambda: r.roster.workers("decode")[0][1].free_blocks == 10)
            assert not p.heard, "a small request must not overtake"
            d.beat(free_blocks=23)
            (await big).cancel("test")
            (await small).cancel("test")
            prompts = [len(m.prompt_ids) for m in p.of(PrefillRequest) if isinstance(m, PrefillRequest)]
            assert prompts == [320, 16]
            await r.nothing_left()

    run(work())


def test_what_was_just_sent_counts_before_a_heartbeat_knows_of_it() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill()
            d = await r.decode(free_blocks=5)
            d.habits.stall_decode_at = 2
            first = await r.submit(prompt=48)
            second = asyncio.ensure_future(r.submit(prompt=48))
            await r.until(lambda: r.dispatcher.counts()["waiting"])
            first.cancel("test")
            (await second).cancel("test")
            await r.nothing_left()

    run(work())


def test_a_full_queue_turns_newcomers_away_at_once() -> None:
    async def work() -> None:
        async with rig(replace(QUICK, max_waiting=1)) as r:
            await full_pair(r)
            waiting = asyncio.ensure_future(r.submit())
            await r.until(lambda: r.dispatcher.counts()["waiting"])
            with pytest.raises(GatewayError) as caught:
                await r.submit()
            assert (caught.value.status, caught.value.code) == (429, "queue_full")
            assert caught.value.retry_after_s
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await r.nothing_left()
            assert [o.kind for o in r.counts.outcomes] == ["refused", "cancelled"]

    run(work())


def test_waiting_in_vain_is_a_429() -> None:
    async def work() -> None:
        async with rig(replace(QUICK, queue_s=0.02)) as r:
            await full_pair(r)
            with pytest.raises(GatewayError) as caught:
                await r.submit()
            assert (caught.value.status, caught.value.code) == (429, "no_space")
            assert caught.value.retry_after_s
            assert (r.counts.outcomes[0].kind, r.counts.outcomes[0].phase) == ("refused", "queue")
            await r.nothing_left()

    run(work())


def test_waiting_adds_up_over_refusals() -> None:
    async def work() -> None:
        async with rig(replace(QUICK, queue_s=0.1)) as r:
            p, d = await r.prefill(), await r.decode()
            p.habits.stall_prefill = True
            d.habits.refuse = "no_space"
            reader = Reader(await r.submit())
            while reader.error is None:
                refused = len(r.counts.refusals)
                d.beat()
                await r.until(lambda n=refused: reader.error or len(r.counts.refusals) > n)  # type: ignore[misc]
                await r.until(lambda: reader.error or r.dispatcher.counts()["waiting"])
            assert reader.error.status == 429
            assert r.counts.outcomes[0].num_attempts > 2
            await r.nothing_left()

    run(work())


def test_a_client_that_leaves_while_its_request_waits_leaves_nothing() -> None:
    async def work() -> None:
        async with rig() as r:
            p, _ = await full_pair(r)
            waiting = asyncio.ensure_future(r.submit())
            await r.until(lambda: r.dispatcher.counts()["waiting"])
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await r.nothing_left()
            assert not p.heard
            assert r.counts.outcomes[0].kind == "cancelled"

    run(work())
