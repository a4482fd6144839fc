"""Requests that workers give back whole: moved at once, and no failure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.messages import Cancel, PrefillRequest, Reserve, Tail
from tests.support.dispatch_rig import QUICK, Reader, rig, run, tokens


@pytest.mark.parametrize("code", ["preempted", "drained"])
def test_what_a_decode_worker_gives_back_goes_through_the_prefill_pool_to_another(code: str) -> None:
    async def work() -> None:
        async with rig() as r:
            p = await r.prefill()
            d1, d2 = await r.decode("d1"), await r.decode("d2", free_blocks=900)
            d1.habits.stall_decode_at = 4
            reader = Reader(await r.submit(max_tokens=9))
            await reader.until(4)
            d1.fail(code)
            assert await reader.all() == [tokens(0, 9)]
            again = p.of(PrefillRequest)[-1]
            assert isinstance(again, PrefillRequest)
            assert again.tails == (Tail(0, tuple(tokens(0, 4))),)
            assert again.decode == d2.me
            assert r.counts.moves == [("decode", code)]
            assert not r.counts.kept_out_for
            assert [each.reason for each in r.counts.outcomes[0].journey.tries] == [code, ""]
            await r.all_let_go()

    run(work())


def test_giving_back_is_no_failed_attempt() -> None:
    async def work() -> None:
        async with rig(replace(QUICK, max_attempts=1)) as r:
            await r.prefill()
            workers = [await r.decode(f"d{number}") for number in range(2)]
            reader = Reader(await r.submit(max_tokens=12))
            for count in range(2, 10):
                for d in workers:
                    d.habits.stall_decode_at = count
                await reader.until(count)
                for d in workers:
                    d.habits.stall_decode_at = count + 1
                    d.fail("preempted")
            for d in workers:
                d.habits.stall_decode_at = 1 << 30
                d.fail("preempted")
            assert await reader.all() == [tokens(0, 12)]
            assert r.counts.outcomes[0].num_attempts >= 9
            await r.all_let_go()

    run(work())


def test_a_request_that_is_given_back_for_ever_ends() -> None:
    async def work() -> None:
        async with rig(replace(QUICK, max_given_back=3)) as r:
            await r.prefill()
            d = await r.decode()
            d.habits.stall_decode_at = 1
            reader = Reader(await r.submit(max_tokens=12))
            for attempt in range(1, 5):
                await r.until(lambda a=attempt: any(k[1] == a for k in d.held))  # type: ignore[misc]
                d.fail("preempted")
            error = await reader.failed()
            assert (error.status, error.code) == (503, "preempted")
            assert r.counts.outcomes[0].num_attempts == 4
            await r.nothing_left()

    run(work())


def test_the_only_decode_worker_gets_it_again_when_a_heartbeat_shows_room() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill()
            d = await r.decode()
            d.habits.stall_decode_at = 4
            d.beat(free_blocks=0)
            await r.until(lambda: r.roster.workers("decode")[0][1].free_blocks == 0)
            d.beat(free_blocks=1000)
            await r.until(lambda: r.roster.workers("decode")[0][1].free_blocks == 1000)
            reader = Reader(await r.submit(max_tokens=9))
            await reader.until(4)
            d.beat(free_blocks=0)
            await r.until(lambda: r.roster.workers("decode")[0][1].free_blocks == 0)
            d.fail("preempted")
            await r.until(lambda: r.dispatcher.counts()["waiting"])
            num_sent = len(d.of(Reserve))
            d.beat()
            await r.until(lambda: True)
            assert len(d.of(Reserve)) == num_sent
            d.habits.stall_decode_at = 1 << 30
            d.beat(free_blocks=1000)
            assert await reader.all() == [tokens(0, 9)]
            await r.all_let_go()

    run(work())


def test_without_a_prefill_worker_it_is_prefilled_locally_within_the_budget() -> None:
    async def work() -> None:
        async with rig() as r:
            d1 = await r.decode("d1", local_prefill_tokens=100)
            d2 = await r.decode("d2", local_prefill_tokens=100, free_blocks=900)
            d1.habits.stall_decode_at = 4
            reader = Reader(await r.submit(max_tokens=9))
            await reader.until(4)
            d1.fail("preempted")
            assert await reader.all() == [tokens(0, 9)]
            (local,) = d2.of(PrefillRequest)
            assert isinstance(local, PrefillRequest)
            assert local.tails == (Tail(0, tuple(tokens(0, 4))),)
            await r.all_let_go()

    run(work())


def test_a_prefill_worker_that_drains_leaves_the_reservation_to_the_next_one() -> None:
    async def work() -> None:
        async with rig(replace(QUICK, max_attempts=1)) as r:
            p1, p2 = await r.prefill("p1"), await r.prefill("p2", waiting_tokens=9)
            d = await r.decode()
            p1.habits.stall_prefill = True
            reader = Reader(await r.submit(max_tokens=6))
            await r.until(lambda: p1.held and d.held)
            p1.fail("drained", "prefill")
            assert await reader.all() == [tokens(0, 6)]
            assert p2.of(PrefillRequest)
            assert [m.attempt for m in d.of(Reserve) if isinstance(m, Reserve)] == [1, 2]
            assert not d.of(Cancel)
            await r.all_let_go()

    run(work())


def test_a_prefill_worker_that_drains_after_its_first_token_is_doubted_first() -> None:
    """It may have handed over, and D gone on: then nothing is moved."""

    async def work() -> None:
        async with rig(replace(QUICK, max_attempts=1)) as r:
            p1, p2 = await r.prefill("p1"), await r.prefill("p2", waiting_tokens=9)
            await r.decode()
            p1.habits.stall_handover = True
            reader = Reader(await r.submit(max_tokens=6))
            await reader.until(1)
            p1.fail("drained", "prefill")
            assert await reader.all() == [tokens(0, 6)]
            (again,) = p2.of(PrefillRequest)
            assert isinstance(again, PrefillRequest)
            assert again.tails == (Tail(0, tuple(tokens(0, 1))),)
            await r.all_let_go()

    run(work())
