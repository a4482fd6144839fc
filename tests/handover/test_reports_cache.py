"""Public bug reports, replayed on real workers with a toy model: caches, hand-overs, and pools that run full."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from prefill_svc.service import PrefillWorker
from protocol.handover import State
from tests.support.dispatch_rig import run
from tests.support.front_rig import all_done
from tests.support.serving import GATEWAY, KNOWN_S, ONE, Serving, joined, served, serving

BLOCK = 16
LONG: dict[str, Any] = {"max_tokens": 110, "ignore_eos": True}


def ids(length: int, seed: int = 0) -> list[int]:
    """A prompt that shares no block with one of another seed."""
    return [3 + (i * (i + seed) + 17 * seed) % 360 for i in range(length)]


def cached(said: dict[str, Any]) -> int:
    return int(said["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.parametrize("length", [n * BLOCK + d for n in (1, 2, 3) for d in (-1, 0, 1)])
def test_cold_warm_and_after_eviction_are_the_same_tokens(length: int) -> None:
    """Replays vllm #40896: the first greedy answer differed from all later ones."""

    async def work(s: Serving) -> None:
        said = [await s.completed(prompt=ids(length), max_tokens=20, ignore_eos=True) for _ in range(3)]
        assert [cached(each) for each in said] == [0, *[(length - 1) // BLOCK * BLOCK] * 2]
        for seed in range(1, 8):
            await s.completed(prompt=ids(150, seed), max_tokens=2)
        said.append(await s.completed(prompt=ids(length), max_tokens=20, ignore_eos=True))
        assert cached(said[3]) == 0
        assert len({each["text"] for each in said}) == 1

    served(work, num_blocks=24)


def test_a_salt_has_a_cache_of_its_own() -> None:
    """Replays vllm #44701: a salt and another part of the key of one spelling hit each other's blocks."""

    async def work(s: Serving) -> None:
        prompt = ids(3 * BLOCK + 1)
        for fields in ({}, {"cache_salt": "toy"}, {"cache_salt": "X"}, {"cache_salt": "X\x00"}):
            said = [await s.completed(prompt=prompt, **fields) for _ in range(2)]
            assert [cached(each) for each in said] == [0, 3 * BLOCK], fields

    served(work)


def of(s: Serving, worker_id: str, name: str) -> int:
    """A figure of one worker's engine."""
    return int(getattr(s.world.stack.nodes[worker_id].engine.report().load, name))


PAIR = ("prefill-1", "prefill-2", "decode-1")


def test_a_worker_that_came_back_is_credited_with_nothing_that_it_lost() -> None:
    """Replays llm-d-router #2853: the index went on counting blocks of its life before."""

    async def work(s: Serving) -> None:
        prompt = ids(5 * BLOCK + 3)
        assert cached(await s.completed(prompt=prompt)) == 0
        warm = next(p for p in ("prefill-1", "prefill-2") if of(s, p, "prompt_tokens_computed"))
        assert cached(await s.completed(prompt=prompt)) == 5 * BLOCK
        await s.world.kill(warm)
        await asyncio.sleep(KNOWN_S)
        await s.world.kill(warm)
        await asyncio.sleep(KNOWN_S)
        told = [cached(await s.completed(prompt=prompt)) for _ in range(10)]
        had = sum(of(s, p, "prompt_tokens_cached") for p in ("prefill-1", "prefill-2"))
        other = {"prefill-1": "prefill-2", "prefill-2": "prefill-1"}[warm]
        assert told[0] == 0
        assert of(s, other, "prompt_tokens_computed") + of(s, warm, "prompt_tokens_computed") > 0
        assert told[1:] == [5 * BLOCK] * 9
        assert sum(told) == had

    served(work, *PAIR)


def test_after_a_gateway_has_restarted_prefixes_are_hit_again_from_their_second_request_on() -> None:
    """Replays dynamo #1056: a restarted router knew nothing of the workers' blocks, and never learned."""

    async def work() -> None:
        async with serving(*PAIR) as s:
            prompts = [ids(4 * BLOCK + 1, seed) for seed in range(20)]
            for prompt in prompts:
                await s.completed(prompt=prompt)
            await s.world.stack.idle()
            await s.world.kill_gateway(GATEWAY)
            await s.world.kill_gateway(GATEWAY)
            await asyncio.sleep(6)
            s.open_app()
            began = asyncio.get_running_loop().time()
            first = [cached(await s.completed(prompt=prompt)) for prompt in prompts]
            assert asyncio.get_running_loop().time() - began < 20
            assert set(first) <= {0, 4 * BLOCK}
            assert [cached(await s.completed(prompt=prompt)) for prompt in prompts] == [4 * BLOCK] * 20
            await s.drained()

    run(work())


# -- pools that run full -----------------------------------------------------------------------------


async def alone(s: Serving, prompt: Sequence[int], **fields: Any) -> str:
    return str((await s.completed(prompt=prompt, cache_salt="alone", **fields))["text"])


def test_what_ran_out_of_memory_is_handed_over_anew_and_says_the_same() -> None:
    """Replays sglang #6857: it waited for a transfer that had been used up."""

    async def work(s: Serving) -> None:
        prompts = [ids(60, seed) for seed in range(8)]
        wanted = [await alone(s, prompt, **LONG) for prompt in prompts]
        calls = [s.complete(prompt=prompt, **LONG) for prompt in prompts]
        await all_done(calls)
        assert [joined(call, "text")["text"] for call in calls] == wanted

    served(work, num_blocks=40)


def test_two_whose_blocks_fill_the_pool_both_run() -> None:
    """Replays vllm #57104: each wanted one block more for its first token, and neither began."""

    async def work(s: Serving) -> None:
        prompts = [ids(4 * BLOCK, 1), ids(3 * BLOCK, 2)]
        wanted = [await alone(s, prompt) for prompt in prompts]
        calls = [s.complete(prompt=prompt) for prompt in prompts]
        await all_done(calls)
        assert [joined(call, "text")["text"] for call in calls] == wanted

    served(work, num_blocks=7)


@pytest.mark.parametrize("penalty", [0, 1])
def test_who_gives_way_says_what_it_says_alone(penalty: float) -> None:
    """Replays vllm #16832, vllm #3032, LMCache #2007: incomplete, or penalties over the wrong tokens."""
    fields: dict[str, Any] = {"max_tokens": 85, "ignore_eos": True, "frequency_penalty": penalty}

    async def work(s: Serving) -> None:
        prompts = [ids(20, seed) for seed in (1, 2)]
        wanted = [await alone(s, prompt, **fields) for prompt in prompts]
        calls = [s.complete(prompt=prompt, **fields) for prompt in prompts]
        await all_done(calls)
        said = [joined(call, "text") for call in calls]
        assert [each["text"] for each in said] == wanted
        assert [each["usage"]["completion_tokens"] for each in said] == [85, 85]
        assert of(s, "decode-1", "num_preemptions") > 0

    served(work, *ONE, num_blocks=10)


@pytest.mark.parametrize("seed", range(4))
def test_blocks_of_a_cancelled_transfer_are_nobody_elses_before_it_is_over(seed: int) -> None:
    """Replays vllm #45357, vllm #48481: a late write went into blocks that another had by then; 100 times."""

    async def work(s: Serving) -> None:
        other = ids(10 * BLOCK, 99)
        wanted = await alone(s, other)
        s.world.stack.hub.delay = lambda subject, frame: 0.03 if "contents" in subject else 0.001
        for number in range(25):
            gone = s.complete(prompt=ids(9 * BLOCK, number), cache_salt=f"{seed}")
            while not _is_sending(s):
                await asyncio.sleep(0.0005)
            await asyncio.sleep(0.004 * (number % 8))
            gone.leave()
            said = await s.completed(prompt=other, cache_salt=f"{number}")
            assert said["text"] == wanted
            await gone.done()
        s.world.stack.hub.delay = None

    served(work, num_blocks=12)


def _is_sending(s: Serving) -> bool:
    worker = s.world.stack.nodes["prefill-1"].worker
    assert isinstance(worker, PrefillWorker)
    return any(State(worker.state_of(key)) in (State.SENDING, State.COMPLETE) for key in worker.held)


async def at_a_pace(s: Serving, num_requests: int, per_s: float) -> None:
    calls = []
    for number in range(num_requests):
        calls.append(s.complete(prompt=ids(20 + number % 60, number), max_tokens=1 + number % 12, ignore_eos=True))
        await asyncio.sleep(1 / per_s)
    await all_done(calls)
    counts = [joined(call, "text")["usage"]["completion_tokens"] for call in calls]
    assert counts == [1 + number % 12 for number in range(num_requests)]
    assert {outcome.num_attempts for outcome in s.world.outcomes.all} == {1}


def test_sixty_four_transfers_at_once_all_succeed() -> None:
    """Replays sglang #9266, sglang #23272."""

    async def work(s: Serving) -> None:
        await at_a_pace(s, 64, 1e6)

    served(work, num_blocks=512)


@pytest.mark.long
def test_ten_minutes_of_transfers_all_succeed() -> None:
    """Replays sglang #9266, sglang #23272: 4 requests a second."""

    async def work(s: Serving) -> None:
        await at_a_pace(s, 2400, 4)

    served(work)
