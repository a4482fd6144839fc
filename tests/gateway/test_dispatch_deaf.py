"""A silent bus is nobody's death: no peer is judged by it, and what can go on goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.errors import GatewayError
from protocol.messages import PrefillRequest, Reserve
from tests.support.dispatch_rig import QUICK, Reader, Rig, rig, run, tokens
from tests.support.scripted_worker import ScriptedWorker

SHORT = replace(QUICK, prefill_s=3.0, transfer_s=3.0, decode_s=3.0, answer_s=2.0)
OUTAGE_S = 30.0


def stall(phase: str, p: ScriptedWorker, d: ScriptedWorker) -> None:
    p.habits.stall_prefill = phase == "prefill"
    p.habits.stall_handover = phase == "transfer"
    d.habits.stall_decode_at = 2


async def outage(r: Rig, how: str) -> None:
    """The gateway alone is cut off, or the broker delivers nothing to anybody, which nobody is told."""
    if how == "cut off":
        r.hub.cut(r.bus)
        await asyncio.sleep(OUTAGE_S)
        r.hub.restore(r.bus)
    else:
        r.hub.filter = lambda subject, frame: ()
        await asyncio.sleep(OUTAGE_S)
        r.hub.filter = None


@pytest.mark.parametrize("how", ["cut off", "silent"])
@pytest.mark.parametrize("phase", ["prefill", "transfer", "decode"])
def test_no_phase_runs_out_while_the_bus_is_silent_and_all_go_on_afterwards(phase: str, how: str) -> None:
    async def work() -> None:
        async with rig(SHORT) as r:
            p, d = await r.prefill(), await r.decode()
            stall(phase, p, d)
            stream = await r.submit()
            reader = Reader(stream)
            await r.until(lambda: stream._clock.phase == phase)  # type: ignore[attr-defined]
            await outage(r, how)
            assert not r.counts.outcomes
            assert not r.counts.moves
            began = asyncio.get_running_loop().time()
            error = await reader.failed()
            assert error.code == "deadline_exceeded"
            assert phase in error.message
            assert 5.0 <= asyncio.get_running_loop().time() - began <= 5.0 + 3.0 + 1.0
            await r.nothing_left()

    run(work())


def test_a_stream_goes_on_after_an_outage_without_a_gap_or_a_second_attempt() -> None:
    async def work() -> None:
        async with rig(SHORT) as r:
            _, d = await r.prefill(), await r.decode()
            d.habits.token_s = 0.5
            reader = Reader(await r.submit(max_tokens=12))
            await reader.until(3)
            await outage(r, "cut off")
            assert await reader.all() == [tokens(0, 12)]
            assert [o.num_attempts for o in r.counts.outcomes] == [1]
            await r.all_let_go()

    run(work())


def test_what_was_sent_just_before_is_repeated_until_it_is_heard() -> None:
    async def work() -> None:
        async with rig(SHORT) as r:
            p, d = await r.prefill(), await r.decode()
            r.hub.filter = lambda subject, frame: ()
            stream = await r.submit()
            reader = Reader(stream)
            await asyncio.sleep(OUTAGE_S)
            assert not p.of(PrefillRequest)
            r.hub.filter = None
            assert await reader.all() == [tokens(0, 5)]
            assert [len(p.of(PrefillRequest)), len(d.of(Reserve))] == [1, 1]
            assert [o.num_attempts for o in r.counts.outcomes] == [1]
            assert not r.counts.kept_out_for
            await r.all_let_go()

    run(work())


def test_a_newcomer_waits_for_the_bus_and_is_served_when_it_is_back() -> None:
    async def work() -> None:
        async with rig(replace(QUICK, queue_s=100.0)) as r:
            await r.prefill(), await r.decode()
            await asyncio.sleep(2.0)
            r.hub.cut(r.bus)
            await asyncio.sleep(4.0)
            task = r.queued()
            await asyncio.sleep(4.0)
            assert not task.done()
            r.hub.restore(r.bus)
            assert await Reader(await task).all() == [tokens(0, 5)]
            await r.all_let_go()

    run(work())


def test_a_newcomers_wait_is_judged_by_nobody_and_ends_honestly() -> None:
    async def work() -> None:
        async with rig(replace(QUICK, queue_s=10.0)) as r:
            await r.prefill(), await r.decode()
            await asyncio.sleep(2.0)
            r.hub.cut(r.bus)
            await asyncio.sleep(4.0)
            task = r.queued()
            await asyncio.sleep(6.0)
            with pytest.raises(GatewayError) as caught:
                await r.submit()
            assert (caught.value.status, caught.value.code) == (503, "no_worker")
            with pytest.raises(GatewayError) as caught:
                await task
            assert caught.value.status == 503
            assert asyncio.get_running_loop().time() < 30
            await r.nothing_left()

    run(work())


def test_a_moved_request_does_not_lose_its_place_to_an_outage() -> None:
    async def work() -> None:
        async with rig(replace(QUICK, queue_s=10.0)) as r:
            _, d = await r.prefill(), await r.decode()
            d.habits.stall_decode_at = 2
            reader = Reader(await r.submit())
            await reader.until(2)
            d.die()
            await r.until(lambda: r.dispatcher.counts()["waiting"])
            await outage(r, "cut off")
            assert not r.counts.outcomes
            await r.decode("d2")
            assert await reader.all() == [tokens(0, 5)]
            await r.all_let_go()

    run(work())


def test_a_cancel_is_repeated_through_an_outage() -> None:
    async def work() -> None:
        async with rig(replace(QUICK, cancel_s=5.0)) as r:
            p, d = await r.prefill(), await r.decode()
            d.habits.stall_decode_at = 2
            stream = await r.submit()
            await Reader(stream).until(2)
            r.hub.cut(r.bus)
            stream.cancel("client left")
            await asyncio.sleep(OUTAGE_S)
            assert r.dispatcher.counts()["cancels"] == 2
            r.hub.restore(r.bus)
            await r.nothing_left()
            assert not p.held
            assert not d.held

    run(work())
