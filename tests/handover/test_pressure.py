"""Pools too small for what their requests grow to: requests give way and go on elsewhere, with the same tokens."""

from __future__ import annotations

import asyncio

import pytest

from protocol.sampling import Sampling
from tests.handover.test_programs import oracle
from tests.support.virtual_clock import run_virtually
from tests.support.world import World

PROMPTS = [tuple(5 + (i * (i + k)) % 90 for i in range(20)) for k in range(6)]
LONG = Sampling(temperature=0.8, seed=9, max_tokens=420, ignore_eos=True)
"""More than what is expected of a request when it is let in, so that pools fill up."""
NUM_BLOCKS = 60


@pytest.mark.parametrize("local_prefill_tokens", [64, -1], ids=["given back", "computed again here"])
def test_what_gives_way_goes_on_with_the_same_tokens(local_prefill_tokens: int) -> None:
    """Replays sglang #6857."""

    async def check() -> None:
        world = World(num_blocks=NUM_BLOCKS, local_prefill_tokens=local_prefill_tokens)
        await world.start()
        for prompt in PROMPTS:
            world.ask(prompt, 1, LONG)
        await asyncio.gather(*world.gateways["gateway-1"].tasks)
        for asked in world.asked:
            assert asked.error is None
            assert asked.tokens == oracle(asked.prompt, 1, LONG)
        given_way = sum(node.worker.load.num_preemptions for node in world.stack.nodes.values())
        assert given_way > 0
        moved = [outcome for outcome in world.outcomes.all if outcome.num_attempts > 1]
        assert bool(moved) == (local_prefill_tokens >= 0)
        assert world.outcomes.all[-1].num_attempts >= 1
        first = next(
            outcome for outcome in world.outcomes.all if outcome.request_id == world.outcomes.all[0].request_id
        )
        assert first.num_attempts == 1, "the oldest never gives way"
        await world.settle()
        await world.close()

    run_virtually(check())


def test_one_answer_that_outgrows_every_pool_ends_alone() -> None:
    async def check() -> None:
        world = World(num_blocks=20)
        await world.start()
        huge = Sampling(temperature=0.0, max_tokens=1500, ignore_eos=True)
        small = Sampling(temperature=0.0, max_tokens=20, ignore_eos=True)
        world.ask(PROMPTS[0], 1, huge)
        world.ask(PROMPTS[1], 1, small)
        await asyncio.gather(*world.gateways["gateway-1"].tasks)
        outgrown, other = world.asked
        assert outgrown.error is not None
        assert outgrown.error.code == "never_fits"
        assert other.tokens == oracle(other.prompt, 1, small)
        await world.settle()
        await world.close()

    run_virtually(check())
