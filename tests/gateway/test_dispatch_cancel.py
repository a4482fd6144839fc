"""An operator's cancel: from anybody on the bus who isn't a worker of the request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.told import MAX_TEXT_LEN
from protocol.messages import Cancel, Released
from runtime.identity import new_peer
from runtime.memory_bus import MemoryBus
from runtime.postbox import Postbox
from tests.support.dispatch_rig import Reader, Rig, rig, run, tokens


class Operator:
    """Sends cancels and keeps the answers."""

    def __init__(self, r: Rig) -> None:
        self.released: list[Released] = []
        self._gateway = r.postbox.me
        self.postbox = Postbox(MemoryBus(r.hub), new_peer("kvferry-cancel"))
        self.postbox.on(Released, lambda sender, message: self.released.append(message))

    def cancel(self, request_id: str, attempt: int = 0, reason: str = "by hand") -> None:
        self.postbox.send(self._gateway, Cancel(request_id, attempt, reason))


@asynccontextmanager
async def operator(r: Rig) -> AsyncIterator[Operator]:
    made = Operator(r)
    await made.postbox.open()
    try:
        yield made
    finally:
        made.postbox.close()
        await made.postbox.bus.close()


@pytest.mark.parametrize("attempt", [0, 1, 99])
def test_it_ends_the_request_whatever_its_attempt_and_is_answered(attempt: int) -> None:
    async def work() -> None:
        async with rig() as r, operator(r) as hand:
            p, d = await r.prefill(), await r.decode()
            d.habits.stall_decode_at = 2
            stream = await r.submit()
            reader = Reader(stream)
            await reader.until(2)
            hand.cancel(stream.request_id, attempt)
            error = await reader.failed()
            assert (error.status, error.code, error.message) == (499, "cancelled", "by hand")
            await r.until(lambda: hand.released)
            assert hand.released == [Released(stream.request_id, attempt)]
            await r.nothing_left()
            assert d.of(Cancel)
            assert not p.held
            assert not d.held
            assert [(o.kind, o.code) for o in r.counts.outcomes] == [("cancelled", "cancelled")]

    run(work())


def test_it_ends_a_request_that_waits() -> None:
    async def work() -> None:
        async with rig() as r, operator(r) as hand:
            await r.prefill(), await r.decode(free_blocks=0)
            task = r.queued()
            await r.until(lambda: r.dispatcher.counts()["waiting"])
            (request_id,) = r.dispatcher._requests
            hand.cancel(request_id, reason="x" * 10_000)
            await r.until(task.done)
            error = task.exception()
            assert error is not None
            assert len(str(error)) == MAX_TEXT_LEN
            await r.nothing_left()

    run(work())


def test_an_unknown_request_is_answered_too() -> None:
    async def work() -> None:
        async with rig() as r, operator(r) as hand:
            hand.cancel("req-of-another-gateway", 3)
            await r.until(lambda: hand.released)
            assert hand.released == [Released("req-of-another-gateway", 3)]
            hand.cancel("req-of-another-gateway", 3)
            await r.until(lambda: len(hand.released) == 2)

    run(work())


def test_a_worker_of_the_request_cannot_cancel_it() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill()
            d = await r.decode()
            d.habits.token_s = 0.01
            stream = await r.submit(max_tokens=9)
            reader = Reader(stream)
            await reader.until(2)
            d.postbox.send(r.postbox.me, Cancel(stream.request_id, 1, "I say so"))
            assert await reader.all() == [tokens(0, 9)]
            assert [o.kind for o in r.counts.outcomes] == ["finished"]

    run(work())
