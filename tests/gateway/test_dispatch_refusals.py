"""Workers that take nothing: who is asked next, and what the client hears."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.errors import GatewayError
from protocol.messages import (
    Cancel,
    Message,
    PrefillRequest,
    Reserve,
)
from tests.support.dispatch_rig import Reader, read, rig, run, tokens

Lose = Callable[[Message], bool]


def test_a_refusal_goes_to_the_next_decode_worker_with_the_same_prefill_worker() -> None:
    async def work() -> None:
        async with rig() as r:
            p1 = await r.prefill("p1")
            p2 = await r.prefill("p2", waiting_tokens=10)
            d1, d2 = await r.decode("d1"), await r.decode("d2", free_blocks=900)
            d1.habits.refuse = "no_space"
            p1.habits.stall_handover = True
            stream = await r.submit(max_tokens=6)
            await r.until(lambda: d2.of(Reserve))
            p1.habits.stall_handover = False
            assert not p2.heard
            assert r.counts.refusals == [("decode", "no_space")]
            assert stream.num_attempts == 2
            stream.cancel("test")
            await r.nothing_left()

    run(work())


def test_the_last_prefill_worker_that_refuses_leaves_the_fallback() -> None:
    async def work() -> None:
        async with rig() as r:
            p = await r.prefill()
            await r.decode(local_prefill_tokens=100)
            p.habits.refuse = "draining"
            stream = await r.submit(max_tokens=6)
            assert await read(stream) == [tokens(0, 6)]
            assert stream.path == "fallback"
            await r.all_let_go()

    run(work())


def test_a_prefill_worker_that_refuses_is_replaced_and_the_reservation_moves() -> None:
    async def work() -> None:
        async with rig() as r:
            p1, p2 = await r.prefill("p1"), await r.prefill("p2", waiting_tokens=10)
            d1, d2 = await r.decode("d1"), await r.decode("d2", free_blocks=900)
            p1.habits.refuse = "queue_full"
            stream = await r.submit(max_tokens=6)
            assert await read(stream) == [tokens(0, 6)]
            await r.all_let_go()
            assert len(p2.of(PrefillRequest)) == 1
            assert [m.attempt for m in d1.of(Reserve) if isinstance(m, Reserve)] == [1, 2]
            assert not d1.of(Cancel)
            assert not d2.heard

    run(work())


def test_what_fits_no_worker_is_a_400_only_when_all_have_said_so() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill()
            d1, d2 = await r.decode("d1"), await r.decode("d2")
            d1.habits.refuse = d2.habits.refuse = "never_fits"
            error = await Reader(await r.submit()).failed()
            assert (error.status, error.code) == (400, "never_fits")
            assert d1.of(Reserve)
            assert d2.of(Reserve)
            assert [o.kind for o in r.counts.outcomes] == ["refused"]
            await r.nothing_left()

    run(work())


def test_a_bad_request_is_not_tried_elsewhere() -> None:
    async def work() -> None:
        async with rig() as r:
            p1, p2 = await r.prefill("p1"), await r.prefill("p2", waiting_tokens=9)
            await r.decode()
            p1.habits.refuse = "bad_request"
            error = await Reader(await r.submit()).failed()
            assert error.status == 400
            assert not p2.heard
            await r.nothing_left()

    run(work())


def test_a_grant_that_was_refused_is_told_by_the_prefill_worker_and_counts_as_a_refusal() -> None:
    async def work() -> None:
        async with rig() as r:
            p = await r.prefill()
            d1, d2 = await r.decode("d1"), await r.decode("d2", free_blocks=900)
            p.habits.stall_handover = True
            reader = Reader(await r.submit(max_tokens=6))
            await reader.until(1)
            p.habits.stall_handover = False
            p.fail("no_space", "transfer")
            assert await reader.all() == [tokens(0, 6)]
            assert d2.of(Reserve)
            assert r.counts.refusals == [("decode", "no_space")]
            assert not r.counts.moves
            await r.until(lambda: d1.of(Cancel))

    run(work())


def test_submit_says_at_once_when_nobody_is_there() -> None:
    async def work() -> None:
        async with rig() as r:
            with pytest.raises(GatewayError) as caught:
                await r.submit()
            assert caught.value.status == 503

    run(work())
