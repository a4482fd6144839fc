"""Who goes first, who is turned away at once, and who never is."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.errors import GatewayError
from gateway.pace import LONGEST_S, Pace
from protocol.messages import PrefillRequest, Reserve
from tests.support.dispatch_rig import QUICK, Reader, Rig, rig, run, tokens
from tests.support.scripted_worker import ScriptedWorker


async def refused(r: Rig, **request: int) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        await r.submit(**request)
    return caught.value


def prompts(worker: ScriptedWorker) -> list[int]:
    return [len(m.prompt_ids) for m in worker.of(PrefillRequest) if isinstance(m, PrefillRequest)]


def test_a_moved_request_goes_ahead_of_those_that_were_there_before_it_came_back() -> None:
    async def work() -> None:
        async with rig() as r:
            p, d = await r.prefill(), await r.decode()
            d.habits.max_held, d.habits.stall_decode_at = 1, 3
            d.beat(max_num_seqs=1)
            await r.until(lambda: r.roster.workers("decode")[0][1].max_num_seqs == 1)
            reader = Reader(await r.submit(max_tokens=8, prompt=100))
            await reader.until(3)
            d.beat(num_running=1, free_blocks=0)
            await r.until(lambda: r.roster.workers("decode")[0][1].num_running == 1)
            new = [r.queued(max_tokens=3, prompt=20 + n) for n in range(2)]
            await r.until(lambda: r.dispatcher.counts()["waiting"] == 2)
            d.fail("preempted")
            await r.until(lambda: r.dispatcher.counts()["waiting"] == 3)
            d.habits.stall_decode_at = 1 << 30
            d.beat(num_running=0, free_blocks=1000)
            assert await reader.all() == [tokens(0, 8)]
            for task in new:
                assert await Reader(await task).all() == [tokens(0, 3)]
            order = list(dict.fromkeys(prompts(p)))
            assert order == [100, 20, 21]
            assert prompts(p)[:2] == [100, 100]
            await r.all_let_go()

    run(work())


def test_of_moved_requests_the_oldest_goes_first() -> None:
    async def work() -> None:
        async with rig() as r:
            p, d1 = await r.prefill(), await r.decode("d1")
            d1.habits.stall_decode_at = 2
            readers = [Reader(await r.submit(max_tokens=6, prompt=100 + n)) for n in range(3)]
            for reader in readers:
                await reader.until(2)
            p.heard.clear()
            d1.die()
            await r.until(lambda: r.dispatcher.counts()["waiting"] == 3)
            await r.decode("d2")
            for reader in readers:
                assert await reader.all() == [tokens(0, 6)]
            assert prompts(p) == [100, 101, 102]
            await r.all_let_go()

    run(work())


def test_a_moved_request_gets_no_429_however_full_the_queue_is() -> None:
    async def work() -> None:
        async with rig(replace(QUICK, max_waiting=1, queue_s=20.0)) as r:
            await r.prefill()
            d = await r.decode()
            d.habits.stall_decode_at = 2
            readers = [Reader(await r.submit(max_tokens=6)) for _ in range(3)]
            for reader in readers:
                await reader.until(2)
            d.beat(free_blocks=0)
            await r.until(lambda: r.roster.workers("decode")[0][1].free_blocks == 0)
            waiting = r.queued()
            await r.until(lambda: r.dispatcher.counts()["waiting"] == 1)
            d.fail("preempted")
            await r.until(lambda: r.dispatcher.counts()["waiting"] == 4)
            for reader in readers:
                error = await reader.failed()
                assert (error.status, error.code) == (504, "deadline_exceeded")
                assert "queue" in error.message
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await r.nothing_left()
            assert sorted(o.kind for o in r.counts.outcomes) == ["deadline"] * 3 + ["refused"]

    run(work())


def test_a_decode_worker_that_refuses_what_has_begun_makes_it_a_moved_request() -> None:
    async def work() -> None:
        async with rig(replace(QUICK, queue_s=8.0)) as r:
            await r.prefill()
            d = await r.decode()
            d.habits.refuse = "no_space"
            d.beat(free_blocks=1000)
            reader = Reader(await r.submit(max_tokens=6))
            await reader.until(1)
            await r.until(lambda: r.counts.refusals)
            d.beat(free_blocks=0)
            assert (await reader.failed()).status == 504
            await r.nothing_left()

    run(work())


def test_moving_gives_a_request_the_whole_time_for_waiting_anew() -> None:
    async def work() -> None:
        async with rig(replace(QUICK, queue_s=10.0)) as r:
            await r.prefill()
            d = await r.decode(free_blocks=0)
            d.habits.stall_decode_at = 2
            task = r.queued(max_tokens=6)
            await asyncio.sleep(9.0)
            d.beat(free_blocks=1000)
            reader = Reader(await task)
            await reader.until(2)
            d.die()
            await asyncio.sleep(9.0)
            await r.decode("d2")
            assert await reader.all() == [tokens(0, 6)]

    run(work())


def test_who_cannot_be_served_by_any_worker_lets_others_pass() -> None:
    """Its prompt is over the local budget and the last prefill worker is gone."""

    async def work() -> None:
        async with rig(replace(QUICK, queue_s=30.0)) as r:
            p, d = await r.prefill(), await r.decode(local_prefill_tokens=64)
            p.habits.stall_handover = True
            big = Reader(await r.submit(max_tokens=6, prompt=400))
            await big.until(1)
            p.die()
            await r.until(lambda: r.dispatcher.counts()["waiting"] == 1)
            small = Reader(await r.submit(max_tokens=3, prompt=32))
            assert await small.all() == [tokens(0, 3)]
            assert d.of(PrefillRequest)
            await r.prefill("p2")
            assert await big.all() == [tokens(0, 6)]
            await r.all_let_go()

    run(work())


def test_newcomers_are_turned_away_when_the_first_has_waited_too_long() -> None:
    async def work() -> None:
        async with rig(replace(QUICK, queue_s=20.0)) as r:
            await r.prefill()
            d = await r.decode(free_blocks=0)
            first = r.queued(max_tokens=3)
            await asyncio.sleep(9.0)
            second = r.queued(max_tokens=3)
            await asyncio.sleep(2.0)
            error = await refused(r)
            assert (error.status, error.code) == (429, "queue_full")
            assert "11 seconds" in error.message
            assert error.retry_after_s == 11
            assert r.counts.outcomes[-1].kind == "refused"
            d.beat(free_blocks=1000)
            for task in (first, second):
                assert await Reader(await task).all() == [tokens(0, 3)]
            assert await Reader(await r.submit(max_tokens=3)).all() == [tokens(0, 3)]
            await r.all_let_go()

    run(work())


def test_waiting_in_vain_says_when_to_come_again() -> None:
    async def work() -> None:
        async with rig(replace(QUICK, queue_s=20.0)) as r:
            await r.prefill()
            await r.decode(free_blocks=0)
            error = await refused(r)
            assert (error.status, error.code, error.retry_after_s) == (429, "no_space", 20)
            assert not r.workers[1].of(Reserve)

    run(work())


def test_the_time_to_come_again_follows_the_pace_of_the_queue() -> None:
    pace = Pace()
    assert pace.retry_after_s(5, 0.0, 0.0) == 1
    assert pace.retry_after_s(5, 7.2, 0.0) == 8
    assert pace.retry_after_s(5, 1000.0, 0.0) == LONGEST_S
    for second in range(100, 110):
        pace.moved(float(second))
    assert pace.retry_after_s(20, 3.0, 110.0) == 20
    assert pace.retry_after_s(2, 3.0, 110.0) == 2
    assert pace.retry_after_s(20, 3.0, 200.0) == 3, "what moved long ago tells nothing"
    for number in range(1000):
        pace.moved(200.0 + number / 1000)
    assert pace.retry_after_s(100, 3.0, 201.0) == 1
