"""Workers that fail and die: the request goes on elsewhere, from its accepted tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from protocol.messages import (
    Message,
    Peer,
    PrefillRequest,
    Reserve,
    Tail,
)
from tests.support.dispatch_rig import QUICK, Reader, read, rig, run, tokens

Lose = Callable[[Message], bool]


def test_a_decode_worker_dies_and_the_stream_goes_on_from_the_accepted_tokens() -> None:
    async def work() -> None:
        async with rig() as r:
            p = await r.prefill()
            d1, d2 = await r.decode("d1"), await r.decode("d2", free_blocks=900)
            d1.habits.stall_decode_at = 4
            d1.habits.end_at = {1: 2}
            stream = await r.submit(max_tokens=9, n=2)
            reader = Reader(stream, 2)
            await reader.until(4, choice=0)
            await r.until(lambda: 1 in reader.ends)
            d1.die()
            assert await reader.all() == [tokens(0, 9), tokens(1, 2)]
            await r.all_let_go()
            again = p.of(PrefillRequest)[-1]
            assert isinstance(again, PrefillRequest)
            assert again.attempt == 2
            assert again.tails == (Tail(0, tuple(tokens(0, 4))),)
            assert d2.of(Reserve)
            assert r.counts.moves == [("decode", "worker_lost")]
            assert stream.path == "split"
            assert r.counts.outcomes[0].num_attempts == 2

    run(work())


def test_a_worker_that_comes_back_with_a_newer_epoch_has_lost_its_requests() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill()
            d1 = await r.decode("d1")
            d1.habits.stall_decode_at = 3
            reader = Reader(await r.submit(max_tokens=6))
            await reader.until(3)
            d1.stop_working()
            await r.decode("d2", free_blocks=900)
            await r.decode("d1")
            assert await reader.all() == [tokens(0, 6)]

    run(work())


def test_with_one_token_left_a_move_needs_no_decode_worker() -> None:
    async def work() -> None:
        async with rig() as r:
            p = await r.prefill()
            d1 = await r.decode("d1")
            d1.habits.stall_decode_at = 4
            reader = Reader(await r.submit(max_tokens=5))
            await reader.until(4)
            d1.die()
            assert await reader.all() == [tokens(0, 5)]
            again = p.of(PrefillRequest)[-1]
            assert isinstance(again, PrefillRequest)
            assert again.decode == Peer()
            await r.all_let_go()

    run(work())


def test_a_prefill_worker_dies_before_its_first_token_and_another_takes_over() -> None:
    async def work() -> None:
        async with rig() as r:
            p1 = await r.prefill("p1")
            p2 = await r.prefill("p2", waiting_tokens=10)
            d = await r.decode()
            p1.habits.stall_prefill = True
            stream = await r.submit(max_tokens=6)
            await r.until(lambda: p1.held and d.held)
            p1.die()
            assert await read(stream) == [tokens(0, 6)]
            assert p2.of(PrefillRequest)
            assert [m.attempt for m in d.of(Reserve) if isinstance(m, Reserve)] == [1, 2]
            await r.all_let_go()

    run(work())


def test_a_prefill_worker_dies_after_its_first_token_and_the_request_is_moved_with_it() -> None:
    async def work() -> None:
        async with rig() as r:
            p1 = await r.prefill("p1")
            p2 = await r.prefill("p2", waiting_tokens=10)
            await r.decode()
            p1.habits.stall_handover = True
            stream = await r.submit(max_tokens=6)
            reader = Reader(stream)
            await reader.until(1)
            p1.die()
            assert await reader.all() == [tokens(0, 6)]
            (again,) = p2.of(PrefillRequest)
            assert isinstance(again, PrefillRequest)
            assert again.tails == (Tail(0, tuple(tokens(0, 1))),)
            await r.all_let_go()

    run(work())


def test_a_prefill_worker_that_dies_after_adoption_changes_nothing() -> None:
    async def work() -> None:
        async with rig() as r:
            p1 = await r.prefill("p1")
            await r.prefill("p2", waiting_tokens=10)
            d = await r.decode()
            d.habits.token_s = 0.002
            reader = Reader(await r.submit(max_tokens=30))
            await reader.until(3)
            p1.die()
            assert await reader.all() == [tokens(0, 30)]
            await r.all_let_go()
            assert r.counts.outcomes[0].num_attempts == 1

    run(work())


def test_attempts_are_bounded_and_the_last_reason_is_told() -> None:
    async def work() -> None:
        async with rig(replace(QUICK, max_attempts=3)) as r:
            await r.prefill()
            d = await r.decode()
            d.habits.stall_decode_at = 1
            reader = Reader(await r.submit(max_tokens=6))
            for attempt in range(1, 4):
                await r.until(lambda a=attempt: any(k[1] == a for k in d.held))  # type: ignore[misc]
                d.fail("cancelled")
            error = await reader.failed()
            assert (error.status, error.code) == (503, "worker_lost")
            assert error.retry_after_s
            (outcome,) = r.counts.outcomes
            assert (outcome.kind, outcome.num_attempts) == ("failed", 3)
            await r.nothing_left()

    run(work())


def test_an_engine_failure_is_tried_on_another_worker() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill()
            d1, d2 = await r.decode("d1"), await r.decode("d2", free_blocks=900)
            d1.habits.stall_decode_at = 2
            reader = Reader(await r.submit(max_tokens=6))
            await reader.until(2)
            d1.fail("engine_failed")
            assert await reader.all() == [tokens(0, 6)]
            assert d2.of(Reserve)
            assert r.counts.kept_out_for == [("decode", "engine_failed")]
            await r.nothing_left()

    run(work())


@pytest.mark.parametrize("num_decode", [1, 2])
def test_a_second_engine_failure_ends_the_request_and_keeps_the_details_in_the_log(num_decode: int) -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill(), await r.prefill("p2")
            workers = [await r.decode(f"d{number}") for number in range(num_decode)]
            for d in workers:
                d.habits.stall_decode_at = 2
            reader = Reader(await r.submit(max_tokens=6))
            for num_tokens in (2, 4):
                await reader.until(num_tokens)
                for d in workers:
                    d.habits.stall_decode_at = 4
                    d.fail("engine_failed")
            error = await reader.failed()
            assert (error.status, error.code) == (500, "engine_failed")
            assert error.message != "test"
            assert (r.counts.outcomes[0].kind, r.counts.outcomes[0].phase) == ("failed", "decode")
            await r.nothing_left()

    run(work())


def test_with_nobody_left_it_waits_for_a_worker_and_then_the_failure_is_told_as_it_was() -> None:
    async def work() -> None:
        async with rig(replace(QUICK, queue_s=8.0)) as r:
            await r.prefill()
            d = await r.decode()
            d.habits.stall_decode_at = 2
            reader = Reader(await r.submit(max_tokens=6))
            await reader.until(2)
            d.die()
            error = await reader.failed()
            assert (error.status, error.code) == (503, "no_worker")
            assert "worker_lost" in error.message
            assert r.counts.outcomes[0].spent_s["queue"] == pytest.approx(8.0, abs=0.1)
            assert (r.counts.outcomes[0].kind, r.counts.outcomes[0].phase) == ("failed", "queue")
            await r.nothing_left()

    run(work())


def test_a_worker_that_comes_in_time_takes_what_nobody_was_left_for() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill()
            d = await r.decode()
            d.habits.stall_decode_at = 2
            reader = Reader(await r.submit(max_tokens=6))
            await reader.until(2)
            d.die()
            await r.until(lambda: r.dispatcher.counts()["waiting"])
            await r.decode("d2")
            assert await reader.all() == [tokens(0, 6)]
            await r.all_let_go()

    run(work())
