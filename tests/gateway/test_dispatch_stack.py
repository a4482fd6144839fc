"""The dispatcher with the real workers and a toy model, on the memory bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.dispatcher import GatewayDispatcher
from gateway.generation import Generation, Stream
from protocol.sampling import Sampling
from runtime.identity import new_peer
from runtime.memory_bus import MemoryBus
from runtime.postbox import Postbox
from runtime.roster import Roster
from tests.support.dispatch_rig import QUICK, Counts, Reader
from tests.support.stack import Stack, run, until

PROMPT = tuple(range(5, 105))


class Whole:
    """A gateway without its HTTP side, and the workers that a test names."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.counts = Counts()
        self.postbox = Postbox(MemoryBus(stack.hub), new_peer("gateway-1"))
        self.roster = Roster(self.postbox)
        self.dispatcher = GatewayDispatcher(self.postbox, self.roster, QUICK, self.counts)

    async def submit(self, max_tokens: int = 12, n: int = 1, prompt: tuple[int, ...] = PROMPT) -> Stream:
        sampling = Sampling(temperature=0.9, seed=7, max_tokens=max_tokens, ignore_eos=True)
        return await self.dispatcher.submit(Generation(prompt, n, sampling))

    @property
    def num_workers(self) -> int:
        health = self.dispatcher.health()
        return health.num_prefill + health.num_decode

    async def idle(self) -> None:
        await self.stack.idle()
        await until(lambda: not any(self.dispatcher.counts().values()))


@asynccontextmanager
async def whole(*workers: tuple[str, str], **settings: object) -> AsyncIterator[Whole]:
    stack = Stack(num_blocks=128)
    made = Whole(stack)
    await made.postbox.open()
    try:
        for role, worker_id in workers:
            await stack.add(role, worker_id, **settings)
        await until(lambda: made.num_workers == len(workers))
        yield made
    finally:
        made.dispatcher.close()
        made.roster.close()
        made.postbox.close()
        await stack.close()


PAIR = (("prefill", "p1"), ("decode", "d1"))
FOUR = (*PAIR, ("prefill", "p2"), ("decode", "d2"))


async def unsplit(max_tokens: int, n: int) -> list[list[int]]:
    async with whole(("decode", "d1"), local_prefill_tokens=-1) as w:
        stream = await w.submit(max_tokens, n)
        assert stream.path == "both"
        tokens = await Reader(stream, n).all()
        await w.idle()
        return tokens


@pytest.mark.parametrize(("max_tokens", "n"), [(12, 1), (1, 1), (2, 1), (9, 3), (1, 2)])
def test_split_gives_the_tokens_of_one_worker_and_leaves_nothing(max_tokens: int, n: int) -> None:
    async def work() -> None:
        async with whole(*PAIR) as w:
            stream = await w.submit(max_tokens, n)
            tokens = await Reader(stream, n).all()
            assert stream.path == "split"
            assert [len(each) for each in tokens] == [max_tokens] * n
            await w.idle()
        assert tokens == await unsplit(max_tokens, n)

    run(work)


@pytest.mark.parametrize("n", [1, 3])
def test_a_decode_worker_that_is_lost_mid_stream_changes_no_token(n: int) -> None:
    async def work() -> None:
        async with whole(*FOUR) as w:
            stream = await w.submit(40, n)
            reader = Reader(stream, n)
            await reader.until(5)
            busy = next(name for name in ("d1", "d2") if w.stack.nodes[name].worker.held)
            lost = w.stack.nodes[busy].node.postbox.me
            await w.stack.remove(busy)
            w.roster._lose(lost)
            tokens = await reader.all()
            assert w.counts.outcomes[0].num_attempts == 2
            await w.idle()
        assert tokens == await unsplit(40, n)

    run(work)


def test_cancelled_and_stopped_requests_leave_nothing() -> None:
    async def work() -> None:
        async with whole(*PAIR) as w:
            for number in range(6):
                stream = await w.submit(400, 2, PROMPT[number:])
                reader = Reader(stream, 2)
                if number % 3 == 0:
                    stream.cancel("test")
                    assert (await reader.failed()).code == "cancelled"
                    continue
                await reader.until(1 + number)
                stream.stop(0, 1)
                await reader.until(2, choice=1)
                stream.stop(1, 2)
                await reader.all()
            await w.idle()
            kinds = [outcome.kind for outcome in w.counts.outcomes]
            assert sorted(kinds) == ["cancelled"] * 2 + ["finished"] * 4

    run(work)


def test_more_requests_than_fit_wait_and_all_are_served() -> None:
    async def work() -> None:
        async with whole(*PAIR) as w:
            streams = [w.submit(8, 1, tuple(range(k, k + 400))) for k in range(20)]
            readers = [Reader(stream) for stream in await asyncio.gather(*streams)]
            tokens = [await reader.all() for reader in readers]
            assert [len(each[0]) for each in tokens] == [8] * 20
            await w.idle()
            assert {outcome.kind for outcome in w.counts.outcomes} == {"finished"}
            assert max(outcome.spent_s["queue"] for outcome in w.counts.outcomes) > 0.01

    run(work)
