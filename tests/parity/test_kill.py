"""The decode worker dies after token k: the stream goes on, and its tokens are those of the unbroken run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from jsonschema import Draft202012Validator

from engine.core import Model
from engine.guides import Guides
from engine.llama import LlamaModel
from gateway.grammars.building import of_schema
from gateway.grammars.calls import of_calls
from gateway.tokenizer import TextTokenizer
from gateway.tool_calls.formats import HERMES
from protocol.sampling import Sampling
from tests.support.inline_guides import InlineGuides
from tests.support.prompts import prompt_ids
from tests.support.virtual_clock import run_virtually
from tests.support.world import Asked, World

pytestmark = pytest.mark.model

FEW = (0, 1, 2, 15, 16, 17, 40)
FEWER = (0, 16)
"""In float32, where no rounding hides behind the kill; `make test-long` has all."""
AFTER = 6
"""Tokens that follow the kill: min_tokens is passed, and a block's end too."""
GREEDY = Sampling(temperature=0.0, ignore_eos=True)
SEEDED = Sampling(
    temperature=1.0,
    seed=2**63 + 11,
    top_p=0.97,
    min_tokens=5,
    ignore_eos=True,
    repetition_penalty=1.1,
    presence_penalty=0.2,
    logprobs=2,
)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(dtype: str, model_dir: Path) -> Model:
    return cast("Model", LlamaModel(model_dir, dtype, max_model_len=2048))


@pytest.fixture(scope="module")
def prompt(model_dir: Path) -> tuple[int, ...]:
    """A short real text whose length is no whole number of blocks."""
    return tuple(list(prompt_ids(model_dir).values())[8][:37])


async def broken_run(
    model: Model,
    prompt: tuple[int, ...],
    sampling: Sampling,
    num_choices: int,
    kills: Sequence[int],
    guides: Guides | None = None,
) -> Asked:
    """One request whose decode worker is killed once after each number of tokens in ``kills``."""
    world = World(model=model, num_blocks=128, guides=guides, max_num_batched_tokens=512, local_prefill_tokens=-1)
    await world.start()
    asked = world.ask(prompt, num_choices, sampling)
    assert asked is not None
    for k in kills:
        while min(map(len, asked.tokens)) < k and not asked.done:
            await asyncio.sleep(0.01)
        if k == 0:
            while not any(world.stack.nodes[d].worker.held for d in ("decode-1", "decode-2")):
                await asyncio.sleep(0.001)
        victim = next(d for d in ("decode-1", "decode-2") if world.stack.nodes[d].worker.held)
        await world.kill(victim)
        await world.kill(victim)
    await world.settle()
    await world.close()
    assert asked.error is None
    assert world.outcomes.all[0].num_attempts == 1 + len(kills)
    return asked


def check_kills(model: Model, prompt: tuple[int, ...], sampling: Sampling, n: int, kills: Sequence[int]) -> None:
    async def check() -> None:
        num_tokens = max(kills) + AFTER
        unbroken = await broken_run(model, prompt, replace(sampling, max_tokens=num_tokens), n, ())
        assert [len(output) for output in unbroken.tokens] == [num_tokens] * n
        for k in kills:
            length = k + AFTER
            broken = await broken_run(model, prompt, replace(sampling, max_tokens=length), n, (k,))
            assert broken.tokens == [tokens[:length] for tokens in unbroken.tokens], k
            assert broken.logprobs == [logprobs[:length] for logprobs in unbroken.logprobs], k

    run_virtually(check())


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_the_output_is_that_of_the_unbroken_run(
    model: Model, dtype: str, prompt: tuple[int, ...], sampling: Sampling, n: int
) -> None:
    """Replays dynamo #2038."""
    check_kills(model, prompt, sampling, n, FEW if dtype == "bfloat16" else FEWER)


def test_it_is_even_when_it_happens_three_times(model: Model, prompt: tuple[int, ...]) -> None:
    async def check() -> None:
        short = replace(SEEDED, max_tokens=30)
        unbroken = await broken_run(model, prompt, short, 1, ())
        broken = await broken_run(model, prompt, short, 1, (3, 9, 21))
        assert (broken.tokens, broken.logprobs) == (unbroken.tokens, unbroken.logprobs)

    run_virtually(check())


@pytest.mark.long
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_it_is_after_every_token(model: Model, prompt: tuple[int, ...], sampling: Sampling, n: int) -> None:
    check_kills(model, prompt, sampling, n, range(41))


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kinds": {"type": "array", "items": {"enum": ["ox", "ant", "hen"]}, "minItems": 11, "maxItems": 11},
    },
    "required": ["name", "kinds"],
    "additionalProperties": False,
}
HELD = {
    "schema": of_schema(SCHEMA),
    "call": of_calls(HERMES, [("note", SCHEMA), ("clock", None)], {}, parallel=False),
}


@pytest.fixture(scope="module")
def guides(model_dir: Path, model: Model) -> Guides:
    return InlineGuides.load(model_dir, model.config.vocab_size)


@pytest.mark.parametrize("kind", HELD)
def test_an_answer_that_is_held_to_a_form_is_that_of_the_unbroken_run(
    model: Model, dtype: str, prompt: tuple[int, ...], guides: Guides, model_dir: Path, kind: str
) -> None:
    """A schema's answer and a forced call, whose grammars are followed anew from the tokens that are there."""
    kills = FEW if dtype == "bfloat16" else FEWER
    tokenizer = TextTokenizer.load(model_dir)
    sampling = replace(SEEDED, ignore_eos=False, min_tokens=0, max_tokens=400, eos_ids=(2,), grammar=HELD[kind])

    async def check() -> None:
        unbroken = await broken_run(model, prompt, sampling, 1, (), guides)
        text = tokenizer.decode([token for token in unbroken.tokens[0] if token != 2])
        value = json.loads(text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
        assert Draft202012Validator(SCHEMA).is_valid(value.get("arguments", value) if kind == "call" else value)
        assert max(FEW) < len(unbroken.tokens[0]) < 80
        for k in kills:
            broken = await broken_run(model, prompt, sampling, 1, (k,), guides)
            assert (broken.tokens, broken.logprobs) == (unbroken.tokens, unbroken.logprobs), k

    run_virtually(check())
