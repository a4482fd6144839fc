"""A token's numbers depend on its own context alone: the real model gives the same ids however it is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from engine.core import Model
from engine.llama import LlamaModel
from kvtransfer.group_link import GroupLink
from kvtransfer.link import Link
from kvtransfer.pair_group import Gloo
from protocol.messages import Tail
from protocol.sampling import Sampling
from runtime.postbox import Postbox
from tests.support.prompts import prompt_ids
from tests.support.scripted_gateway import ScriptedGateway, gateway_of
from tests.support.stack import Stack, run

pytestmark = pytest.mark.model

NUM_BLOCKS = 1024
NUM_PROMPTS = 16
PROMPT_TOKENS = 160
GREEDY = Sampling(temperature=0.0, max_tokens=24, ignore_eos=True)
SEEDED = Sampling(temperature=1.0, top_p=0.95, seed=7_000_000_001, max_tokens=24, ignore_eos=True)

Prompts = list[list[int]]
Check = Callable[[ScriptedGateway], Awaitable[None]]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def model(request: pytest.FixtureRequest, model_dir: Path) -> Model:
    return cast("Model", LlamaModel(model_dir, request.param, max_model_len=2048))


@pytest.fixture(scope="module")
def prompts(model_dir: Path) -> Prompts:
    """Varied real texts, long ones cut to lengths of their own."""
    ids = list(prompt_ids(model_dir).values())[-NUM_PROMPTS:]
    return [part[: PROMPT_TOKENS - 7 * number] for number, part in enumerate(ids)]


def by_gloo(postbox: Postbox) -> Link:
    return GroupLink(postbox, "gloo", Gloo("127.0.0.1"))


def with_workers(
    model: Model,
    pools: int,
    check: Check,
    *,
    chunk: int = 512,
    caching: bool = True,
    make_link: Callable[[Postbox], Link] | None = None,
) -> None:
    """``pools`` prefill and as many decode workers (0: one worker that does both)."""

    async def body() -> None:
        stack = Stack(num_blocks=NUM_BLOCKS, model=model, max_model_len=2048, make_link=make_link)
        settings = {"max_num_batched_tokens": chunk, "enable_prefix_caching": caching}
        for number in range(1, pools + 1):
            await stack.add("prefill", f"prefill-{number}", **settings)
        for number in range(1, max(pools, 1) + 1):
            await stack.add("decode", f"decode-{number}", local_prefill_tokens=-1, **settings)
        async with gateway_of(stack) as gateway:
            await check(gateway)

    run(body, within_s=600)


async def ask_all(
    gateway: ScriptedGateway, prompts: Prompts, sampling: Sampling, pools: int, name: str, *, alone: bool = False
) -> list[list[int]]:
    """Outputs of all prompts, asked at once or one after the other; pairs take turns."""
    outputs: list[list[int]] = []
    for number, prompt in enumerate(prompts):
        pair = number % max(pools, 1) + 1
        prefill = f"prefill-{pair}" if pools else f"decode-{pair}"
        request_id = f"{name}-{number}"
        gateway.ask(prompt, request_id=request_id, sampling=sampling, prefill=prefill, decode=f"decode-{pair}")
        if alone:
            outputs += await gateway.finished(0, request_id=request_id)
    if not alone:
        for number in range(len(prompts)):
            outputs += await gateway.finished(0, request_id=f"{name}-{number}")
    return outputs


Baseline = list[tuple[Sampling, list[list[int]]]]


@pytest.fixture(scope="module", params=[8, pytest.param(24, marks=pytest.mark.long)], ids="{} tokens".format)
def alone(request: pytest.FixtureRequest, model: Model, prompts: Prompts) -> Baseline:
    """Greedy and seeded outputs of one worker, one request at a time, nothing cached."""
    found: Baseline = []

    async def check(gateway: ScriptedGateway) -> None:
        for mode in (GREEDY, SEEDED):
            sampling = replace(mode, max_tokens=request.param)
            found.append((sampling, await ask_all(gateway, prompts, sampling, 0, f"{len(found)}", alone=True)))

    with_workers(model, 0, check, caching=False)
    assert found[0][1] != found[1][1]
    return found


@pytest.mark.parametrize(
    ("pools", "chunk", "make_link"),
    [
        pytest.param(0, 64, None, id="both", marks=pytest.mark.long),
        pytest.param(1, 512, None, id="1+1", marks=pytest.mark.long),
        pytest.param(1, 512, by_gloo, id="1+1, gloo"),
        pytest.param(2, 64, None, id="2+2"),
    ],
)
def test_a_batch_of_sixteen_gives_the_ids_of_each_alone(
    model: Model,
    prompts: Prompts,
    alone: Baseline,
    pools: int,
    chunk: int,
    make_link: Callable[[Postbox], Link] | None,
) -> None:
    """Prefix cache cold and warm, greedy and seeded; each alone was prefilled in one chunk, where it is decoded."""

    async def check(gateway: ScriptedGateway) -> None:
        for sampling, want in alone:
            for cache in ("cold", "warm"):
                name = f"{sampling.seed}-{cache}"
                assert await ask_all(gateway, prompts, sampling, pools, name) == want

    with_workers(model, pools, check, chunk=chunk, make_link=make_link)


@pytest.mark.parametrize(
    ("pools", "produced_lens", "max_tokens"),
    [
        pytest.param(1, (1, 15, 16, 17), 20, id="1+1, short"),
        pytest.param(0, (1, 15, 16, 17, 40), 48, id="both", marks=pytest.mark.long),
        pytest.param(1, (1, 15, 16, 17, 40), 48, id="1+1", marks=pytest.mark.long),
    ],
)
def test_prefilling_prompt_and_produced_tokens_again_goes_on_with_the_same_ids(
    model: Model, prompts: Prompts, pools: int, produced_lens: tuple[int, ...], max_tokens: int
) -> None:
    async def check(gateway: ScriptedGateway) -> None:
        prefill = "prefill-1" if pools else "decode-1"
        for short in (GREEDY, SEEDED):
            sampling = replace(short, max_tokens=max_tokens)
            wholes = await ask_all(gateway, prompts[::4], sampling, pools, f"whole-{sampling.seed}")
            names = {}
            for produced in produced_lens:
                for number, (prompt, whole) in enumerate(zip(prompts[::4], wholes, strict=True)):
                    name = f"{sampling.seed}-{produced}-{number}"
                    tail = Tail(0, tuple(whole[:produced]))
                    gateway.ask(prompt, request_id=name, tails=(tail,), sampling=sampling, prefill=prefill)
                    names[name] = whole[produced:]
            for name, rest in names.items():
                assert await gateway.finished(0, request_id=name) == [rest], name

    with_workers(model, pools, check, caching=False)


def test_three_choices_are_the_same_split_and_together_and_after_a_retry(model: Model, prompts: Prompts) -> None:
    prompt, tails = prompts[3], tuple(Tail(c) for c in range(3))
    sampling = replace(SEEDED, max_tokens=44)
    wholes: list[list[int]] = []

    async def together(gateway: ScriptedGateway) -> None:
        gateway.ask(prompt, tails=tails, sampling=sampling, prefill="decode-1")
        wholes.extend(await gateway.finished(0, 1, 2))

    async def split(gateway: ScriptedGateway) -> None:
        gateway.ask(prompt, tails=tails, sampling=sampling)
        assert await gateway.finished(0, 1, 2) == wholes
        again = tuple(Tail(c, tuple(wholes[c][:n])) for c, n in enumerate((0, 17, 40)))
        gateway.ask(prompt, tails=again, sampling=sampling, request_id="again")
        rests = await gateway.finished(0, 1, 2, request_id="again")
        assert [[*tail.token_ids, *rest] for tail, rest in zip(again, rests, strict=True)] == wholes

    with_workers(model, 0, together)
    assert len({tuple(whole) for whole in wholes}) == 3
    with_workers(model, 1, split)


def test_penalties_and_limits_count_from_the_tail(model: Model, prompts: Prompts) -> None:
    sampling = replace(
        SEEDED, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2, min_tokens=20, ignore_eos=False
    )
    sampling = replace(sampling, eos_ids=(2,), max_tokens=32)

    async def check(gateway: ScriptedGateway) -> None:
        gateway.ask(prompts[5], sampling=sampling)
        (whole,) = await gateway.finished(0)
        assert 20 <= len(whole) <= 32
        tail = Tail(0, tuple(whole[:18]))
        gateway.ask(prompts[5], sampling=sampling, tails=(tail,), request_id="again")
        assert await gateway.finished(0, request_id="again") == [whole[18:]]

    with_workers(model, 1, check)
