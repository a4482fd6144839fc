"""The real model in float32 writes exactly the tokens that transformers' generate writes."""

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.llama import LlamaModel
from tests.support.model_rig import ModelRig
from tests.support.prompts import prompt_ids

pytestmark = pytest.mark.model

AT_ONCE = 8


@dataclass(frozen=True)
class Answer:
    """Greedy tokens and the log probability of each."""

    ids: list[int]
    logprobs: Tensor


def similar(prompts: dict[str, list[int]]) -> Iterator[list[str]]:
    """Names in groups, each with no prompt more than twice as long as its first: little is padded."""
    group: list[str] = []
    for name, ids in prompts.items():
        if group and (len(group) == AT_ONCE or len(ids) > 2 * len(prompts[group[0]])):
            yield group
            group = []
        group.append(name)
    yield group


def hf_answers(folder: Path, prompts: dict[str, list[int]], num_tokens: int) -> dict[str, Answer]:
    """Let generate answer prompts of similar length together, padded on the left."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    answers: dict[str, Answer] = {}
    for group in similar(prompts):
        width = max(len(prompts[name]) for name in group)
        ids, mask = torch.zeros(2, len(group), width, dtype=torch.int64)
        for row, name in enumerate(group):
            ids[row, width - len(prompts[name]) :] = torch.tensor(prompts[name])
            mask[row, width - len(prompts[name]) :] = 1
        out = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=num_tokens,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
        rows = torch.stack(out.logits, dim=1).log_softmax(-1)
        made = out.sequences[:, width:]
        logprobs = rows.gather(2, made.unsqueeze(2)).squeeze(2)
        answers |= {n: Answer(made[i].tolist(), logprobs[i]) for i, n in enumerate(group)}
    return answers


def our_answers(rig: ModelRig, prompts: list[list[int]], num_tokens: int) -> tuple[list[list[int]], Tensor]:
    """Greedy tokens of all prompts together, and the logits ``[prompts, tokens, vocab]`` they came from."""
    started = [rig.prefill(ids, chunk=512) for ids in prompts]
    lines, rows = [line for line, _ in started], [torch.stack([logits for _, logits in started])]
    while len(rows) < num_tokens:
        for line, token in zip(lines, rows[-1].argmax(-1).tolist(), strict=True):
            line.ids.append(token)
        rows.append(rig.step(*((line, len(line.ids)) for line in lines)))
    logits = torch.stack(rows, dim=1)
    return logits.argmax(-1).tolist(), logits


@pytest.mark.parametrize(
    ("every", "num_tokens"),
    [pytest.param(3, 16, id="8 prompts"), pytest.param(1, 64, id="24 prompts", marks=pytest.mark.long)],
)
def test_prompts_get_the_tokens_and_log_probabilities_of_generate(model_dir: Path, every: int, num_tokens: int) -> None:
    prompts = prompt_ids(model_dir)
    assert len(prompts) == 24
    prompts = dict(list(prompts.items())[every - 1 :: every])
    assert min(map(len, prompts.values())) <= 16
    assert max(map(len, prompts.values())) > 1400
    expected = hf_answers(model_dir, prompts, num_tokens)
    gc.collect()
    rig = ModelRig(LlamaModel(model_dir, "float32"), num_blocks=768)
    made, logits = our_answers(rig, list(prompts.values()), num_tokens)
    for row, name in enumerate(prompts):
        assert made[row] == expected[name].ids, name
        logprobs = logits[row].log_softmax(-1)[torch.arange(num_tokens), made[row]]
        assert (logprobs - expected[name].logprobs).abs().max() < 1e-3, name
