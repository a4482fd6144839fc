"""Requests that end on a prefill worker: vectors of prompts and scores of them, over a bus that loses and repeats."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from engine.api import Embedded, NewTokens, Prefill
from protocol.codec import decode
from protocol.messages import Embedded as Told
from protocol.messages import TokenEvents
from protocol.sampling import Sampling
from tests.support.engine_rig import Rig, only, prompt, tails
from tests.support.virtual_clock import run_virtually
from tests.support.world import Asked, World

TEXT = prompt(200)
POOLED = Sampling(max_tokens=1, pooling="mean")
SCORED = Sampling(max_tokens=len(TEXT) - 1, forced_ids=TEXT[1:], logprobs=1)


def lose_first(kind: type) -> object:
    """Each message of a kind is lost at first, then comes twice."""
    seen: set[bytes] = set()

    def fault(subject: str, payload: bytes) -> Iterator[bytes]:
        if "contents" in subject or not isinstance(decode(payload)[1], kind):
            yield payload
        elif payload in seen:
            yield from (payload, payload)
        seen.add(payload)

    return fault


async def ask(world: World, ids: tuple[int, ...], sampling: Sampling) -> Asked:
    asked = world.ask(ids, 1, sampling)
    assert asked is not None
    await world.gateways["gateway-1"].tasks[-1]
    assert asked.error is None
    return asked


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("loses", [False, True])
def test_a_vector_comes_once_and_nothing_stays_behind(pooling: str, loses: bool) -> None:
    sampling = replace(POOLED, pooling=pooling)
    [made] = only(Rig().run(Prefill(("k", 0), TEXT, tails(()), sampling)), Embedded)

    async def check() -> None:
        world = World()
        await world.start()
        if loses:
            world.stack.hub.filter = lose_first(Told)  # type: ignore[assignment]
        asked = await ask(world, TEXT, sampling)
        assert asked.vectors == [made.vector]
        assert asked.tokens == [[]]
        assert world.outcomes.all[0].num_attempts == 1
        assert world.outcomes.all[0].path == "split"
        await world.settle()
        await world.close()

    run_virtually(check())


@pytest.mark.parametrize("loses", [False, True])
def test_scores_come_whole(loses: bool) -> None:
    results = Rig().run(Prefill(("k", 0), TEXT[:1], tails(()), SCORED))
    scores = [each for piece in only(results, NewTokens) for each in piece.logprobs]

    async def check() -> None:
        world = World()
        await world.start()
        if loses:
            world.stack.hub.filter = lose_first(TokenEvents)  # type: ignore[assignment]
        asked = await ask(world, TEXT[:1], SCORED)
        assert asked.tokens == [list(TEXT[1:])]
        assert asked.logprobs == [scores]
        assert world.outcomes.all[0].path == "split"
        await world.settle()
        await world.close()

    run_virtually(check())


@pytest.mark.parametrize("sampling", [POOLED, SCORED], ids=["vector", "scores"])
def test_a_prefill_worker_that_dies_is_made_up_for(sampling: Sampling) -> None:
    async def check() -> None:
        world = World()
        await world.start()
        ids = TEXT if sampling.pooling else TEXT[:1]
        asked = world.ask(ids, 1, sampling)
        assert asked is not None
        victim = None
        while victim is None:
            await asyncio.sleep(0.001)
            victim = next((p for p in ("prefill-1", "prefill-2") if world.stack.nodes[p].worker.held), None)
        await asyncio.sleep(0.05)
        await world.kill(victim)
        await world.gateways["gateway-1"].tasks[0]
        assert asked.error is None
        assert bool(asked.vectors) is bool(sampling.pooling)
        assert asked.tokens == [list(sampling.forced_ids)]
        await world.settle()
        await world.close()

    run_virtually(check())
