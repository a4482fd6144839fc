"""The whole request's deadline: from its arrival, over all phases, whatever the bus does."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import GatewayError
from protocol.messages import Cancel, PrefillRequest, Reserve
from tests.support.dispatch_rig import Reader, rig, run, tokens
from tests.support.scripted_worker import ScriptedWorker


def stall(phase: str, p: ScriptedWorker, d: ScriptedWorker) -> None:
    p.habits.stall_prefill = phase == "prefill"
    p.habits.stall_handover = phase == "transfer"
    d.habits.stall_decode_at = 2


@pytest.mark.parametrize("phase", ["prefill", "transfer", "decode"])
def test_it_ends_the_request_in_each_phase_and_stops_the_work_on_both_sides(phase: str) -> None:
    async def work() -> None:
        async with rig() as r:
            p, d = await r.prefill(), await r.decode()
            stall(phase, p, d)
            began = asyncio.get_running_loop().time()
            reader = Reader(await r.submit(deadline_ms=700))
            error = await reader.failed()
            assert asyncio.get_running_loop().time() - began == pytest.approx(0.7, abs=0.01)
            assert (error.status, error.code) == (504, "deadline_exceeded")
            assert f"700 ms passed in its {phase} phase" in error.message
            assert [(o.kind, o.phase, o.code) for o in r.counts.outcomes] == [("deadline", phase, "deadline_exceeded")]
            await r.nothing_left()
            assert p.of(Cancel)
            assert d.of(Cancel)
            assert not p.held
            assert not d.held

    run(work())


def test_it_ends_a_request_that_waits_and_nothing_was_sent() -> None:
    async def work() -> None:
        async with rig() as r:
            p, d = await r.prefill(), await r.decode(free_blocks=0)
            with pytest.raises(GatewayError) as caught:
                await r.submit(deadline_ms=300)
            assert (caught.value.status, caught.value.code) == (504, "deadline_exceeded")
            assert "queue phase" in caught.value.message
            await r.nothing_left()
            assert not p.heard
            assert not d.heard

    run(work())


def test_moving_does_not_wind_it_up_again() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill()
            d1, d2 = await r.decode("d1"), await r.decode("d2", free_blocks=900)
            d1.habits.stall_decode_at = d2.habits.stall_decode_at = 2
            began = asyncio.get_running_loop().time()
            reader = Reader(await r.submit(deadline_ms=1000))
            await reader.until(2)
            await asyncio.sleep(0.8)
            d1.die()
            assert (await reader.failed()).code == "deadline_exceeded"
            assert asyncio.get_running_loop().time() - began == pytest.approx(1.0, abs=0.01)
            await r.nothing_left()

    run(work())


def test_workers_are_told_what_is_left_of_it() -> None:
    async def work() -> None:
        async with rig() as r:
            p, d = await r.prefill(), await r.decode()
            task = Reader(await r.submit(deadline_ms=2000))
            assert await task.all() == [tokens(0, 5)]
            (request,), (reserve,) = p.of(PrefillRequest), d.of(Reserve)
            assert isinstance(request, PrefillRequest)
            assert isinstance(reserve, Reserve)
            for left in (request.prefill_ms, request.transfer_ms, request.decode_ms, reserve.queue_ms):
                assert 1900 < left <= 2000

    run(work())


def test_a_worker_that_sees_it_pass_first_ends_the_request_alike() -> None:
    async def work() -> None:
        async with rig() as r:
            p, _ = await r.prefill(), await r.decode()
            p.habits.stall_prefill = True
            reader = Reader(await r.submit(deadline_ms=2000))
            await r.until(lambda: p.held)
            await asyncio.sleep(1.9)
            p.fail("deadline_exceeded", "prefill")
            error = await reader.failed()
            assert "deadline of 2000 ms" in error.message
            assert r.counts.outcomes[0].kind == "deadline"

    run(work())


def test_it_runs_on_while_the_bus_is_silent() -> None:
    async def work() -> None:
        async with rig() as r:
            _, d = await r.prefill(), await r.decode()
            d.habits.stall_decode_at = 2
            reader = Reader(await r.submit(deadline_ms=20_000))
            await reader.until(2)
            began = asyncio.get_running_loop().time()
            r.hub.cut(r.bus)
            assert (await reader.failed()).code == "deadline_exceeded"
            assert asyncio.get_running_loop().time() - began == pytest.approx(20, abs=0.1)
            r.hub.restore(r.bus)
            await r.nothing_left()
            assert not d.held

    run(work())


def test_a_request_that_is_done_in_time_hears_nothing_of_it() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill(), await r.decode()
            reader = Reader(await r.submit(deadline_ms=500))
            assert await reader.all() == [tokens(0, 5)]
            await asyncio.sleep(2.0)
            assert [o.kind for o in r.counts.outcomes] == ["finished"]
            await r.all_let_go()

    run(work())
