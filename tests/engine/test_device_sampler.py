"""Tokens chosen on a device that has the logits: those that the host would choose, and no logits moved without need."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from engine import device_sampler
from engine.device_sampler import choose_on_device, choose_on_host, chooser
from engine.guide import GrammarError
from engine.id_masks import Words, mask_of
from engine.sampler import GuidedError, Row, Sampled, SamplingError
from protocol.sampling import Sampling

VOCAB = 300
GREEDY = Sampling(temperature=0.0)
DRAWN = Sampling(temperature=0.9, seed=0xFEDC_BA98_7654_3210, max_tokens=99)

SETTINGS = {
    "greedy": GREEDY,
    "all": DRAWN,
    "top-p": replace(DRAWN, top_p=0.7),
    "top-k": replace(DRAWN, top_k=12, temperature=1.8),
    "min-p": replace(DRAWN, min_p=0.02, temperature=2.0),
    "each filter": replace(DRAWN, top_k=40, top_p=0.95, min_p=0.01, temperature=1.3, seed=3),
    "allowed": replace(DRAWN, allowed_ids=(5, 17, 200, 299)),
    "one allowed": replace(GREEDY, allowed_ids=(123,)),
    "bad words": replace(GREEDY, bad_words=((8, 9), (7,))),
    "no end yet": replace(DRAWN, eos_ids=(1, 2, 3), min_tokens=50),
    "log probabilities": replace(DRAWN, logprobs=2),
    "bias": replace(DRAWN, logit_bias=((44, 9.0),)),
    "penalties": replace(GREEDY, presence_penalty=1.0, frequency_penalty=0.5),
    "repetition": replace(DRAWN, repetition_penalty=1.3),
}
NEED_HOST = ("log probabilities", "bias", "penalties", "repetition")


def noise(num_rows: int, seed: int = 0) -> Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of logits that went to the host."""
    shapes: list[tuple[int, ...]] = []

    def watched(logits: Tensor, rows: list[Row]) -> list[Sampled | SamplingError]:
        shapes.append(tuple(logits.shape))
        return choose_on_host(logits, rows)

    monkeypatch.setattr(device_sampler, "choose_on_host", watched)
    return shapes


def test_a_mixed_batch_has_the_hosts_tokens_and_moves_what_the_host_needs(moved: list[tuple[int, ...]]) -> None:
    logits = noise(len(SETTINGS))
    rows = [Row(place, 0, sampling, (1, 2), (4, 8)) for place, sampling in enumerate(SETTINGS.values())]
    assert choose_on_device(logits, rows) == choose_on_host(logits, rows)
    assert moved == [(len(NEED_HOST), VOCAB)]


def test_draws_at_any_place_of_any_choice_are_the_hosts(moved: list[tuple[int, ...]]) -> None:
    logits = noise(2, seed=1)
    drawn = [SETTINGS[name] for name in ("all", "top-p", "each filter")]
    rows = [
        Row(place % 2, choice, replace(sampling, seed=sampling.seed + place), (1,), (4,) * place)
        for choice, (place, sampling) in product((0, 5), enumerate(drawn))
    ]
    chosen = choose_on_device(logits, rows)
    assert chosen == choose_on_host(logits, rows)
    assert len({token.token_id for token in chosen if isinstance(token, Sampled)}) > 1
    assert moved == []


def test_forced_tokens_are_told_with_their_log_probabilities(moved: list[tuple[int, ...]]) -> None:
    logits = noise(4)
    rows = [Row(3, 0, GREEDY, (1,), forced_id=70), Row(0, 0, GREEDY, (1,))]
    assert choose_on_device(logits, rows) == choose_on_host(logits, rows)
    assert moved == [(1, VOCAB)]


class Grammar:
    """A guide that allows some ids, or can't be followed."""

    def __init__(self, *ids: int) -> None:
        self.ids = ids

    def allowed(self) -> Words:
        if not self.ids:
            raise GrammarError("it is too complex")
        return mask_of(self.ids, VOCAB)


def test_a_grammars_mask_holds_on_the_device_and_its_failure_ends_one_row_alone() -> None:
    logits = noise(3)
    rows = [Row(place, 0, DRAWN, (1,), (), guide) for place, guide in enumerate((Grammar(9, 60), None, Grammar()))]  # type: ignore[arg-type]
    first, second, third = choose_on_device(logits, rows)
    assert [first, second] == choose_on_host(logits, rows)[:2]
    assert isinstance(first, Sampled)
    assert first.token_id in (9, 60)
    assert isinstance(third, GuidedError)
    assert "too complex" in str(third)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_rows_without_a_token_have_the_hosts_errors() -> None:
    logits = noise(5)
    logits[0, 3], logits[1], logits[2, 7] = torch.nan, -torch.inf, -torch.inf
    logits[3, 9] = torch.inf
    wants = [DRAWN, GREEDY, replace(DRAWN, allowed_ids=(7,)), replace(DRAWN, allowed_ids=(7,)), DRAWN]
    rows = [Row(place, 0, sampling, (1,)) for place, sampling in enumerate(wants)]
    found, right = choose_on_device(logits, rows), choose_on_host(logits, rows)
    assert [(type(each), str(each)) for each in found[:4]] == [(type(each), str(each)) for each in right[:4]]
    assert [type(each) for each in found] == [SamplingError, SamplingError, GuidedError, SamplingError, Sampled]
    assert found[4] == right[4]


def test_a_gpu_chooses_by_itself_and_a_cpu_as_ever() -> None:
    assert [chooser(name) for name in ("cuda", "interpreter", "cpu")] == [choose_on_device] * 2 + [choose_on_host]


def test_seeds_of_64_bits_are_all_of_them_different() -> None:
    logits = np.zeros((1, 250), np.float32)
    seeds = [0, 1, 2**31, 2**32, 2**63, 2**64 - 1]
    rows = [Row(0, 0, replace(DRAWN, seed=seed), (1,)) for seed in seeds]
    chosen = choose_on_device(torch.from_numpy(logits), rows)
    assert chosen == choose_on_host(torch.from_numpy(logits), rows)
    assert len(set(chosen)) > 3
