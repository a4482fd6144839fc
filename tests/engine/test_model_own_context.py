"""In the real model a token's numbers depend on its own context alone: logits are equal bit for bit."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.llama import LlamaModel
from tests.support.model_rig import Line, ModelRig
from tests.support.prompts import prompt_ids

pytestmark = pytest.mark.model

SHORT_TOKENS = 8
AGAIN_AFTER = (1, 15, 16, 17, 40)


@dataclass(frozen=True)
class Alone:
    """What 16 prompts give, each by itself: greedy tokens and the logits of each; and a long prompt in one chunk."""

    rig: ModelRig
    prompts: list[list[int]]
    made: list[list[int]]
    logits: list[Tensor]
    long: Line
    long_logits: Tensor


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def alone(request: pytest.FixtureRequest, model_dir: Path) -> Alone:
    rig = ModelRig(LlamaModel(model_dir, request.param))
    every = prompt_ids(model_dir)
    prompts = list(every.values())[:16]
    answers = [rig.generate(ids, SHORT_TOKENS) for ids in prompts]
    return Alone(rig, prompts, [a for a, _ in answers], [b for _, b in answers], *rig.prefill(every["digits"]))


@pytest.fixture
def threads() -> Iterator[None]:
    """Put torch's thread count back after a test that changes it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Two threads that meet on one busy core wait for each other thousands of times a step."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_in_a_batch_of_16(alone: Alone) -> None:
    lines = [Line(list(ids)) for ids in alone.prompts]
    rows = [alone.rig.step(*((line, len(line.ids)) for line in lines))]
    for token in range(SHORT_TOKENS - 1):
        for line, made in zip(lines, alone.made, strict=True):
            line.ids.append(made[token])
        rows.append(alone.rig.step(*((line, len(line.ids)) for line in lines)))
    together = torch.stack(rows, dim=1)
    alone.rig.release(lines)
    assert torch.equal(together, torch.stack(alone.logits))


@pytest.mark.parametrize("chunk", [64, 512, 37])
def test_in_chunks(alone: Alone, chunk: int) -> None:
    parts, logits = alone.rig.prefill(alone.long.ids, chunk)
    filled = len(parts.ids) // 16
    for layer in alone.rig.cache:
        for side in (layer.k, layer.v):
            assert torch.equal(side[alone.long.table[:filled]], side[parts.table[:filled]])
    alone.rig.release([parts])
    assert torch.equal(logits, alone.long_logits)


def test_token_by_token(alone: Alone) -> None:
    line, logits = alone.rig.prefill(alone.prompts[5], chunk=1)
    alone.rig.release([line])
    assert torch.equal(logits, alone.logits[5][0])


def test_decoding_beside_another_prompts_chunks(alone: Alone) -> None:
    line, other = Line(list(alone.prompts[3])), Line(alone.prompts[15] * 3)
    logits = [alone.rig.step((line, len(line.ids)), (other, 5))[0]]
    for token in alone.made[3][:-1]:
        line.ids.append(token)
        end = min(other.computed + 21, len(other.ids))
        logits.append(alone.rig.step((other, end), (line, len(line.ids)))[1])
    alone.rig.release([line, other])
    assert torch.equal(torch.stack(logits), alone.logits[3])


def test_when_prompt_and_tokens_are_prefilled_again(alone: Alone) -> None:
    prompt = alone.prompts[5]
    made, logits = alone.rig.generate(prompt, max(AGAIN_AFTER) + 1)
    for count in AGAIN_AFTER:
        line, again = alone.rig.prefill(prompt + made[:count])
        alone.rig.release([line])
        assert torch.equal(again, logits[count])


def test_on_one_thread_and_two(alone: Alone, threads: None) -> None:
    for count in (1, 2):
        torch.set_num_threads(count)
        _, logits = alone.rig.generate(alone.prompts[9], 2)
        assert torch.equal(logits, alone.logits[9][:2])
