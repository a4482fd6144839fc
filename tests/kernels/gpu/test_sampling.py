"""Tokens that a GPU chooses are those of the sampler on a CPU: the same numbers, the same filters, the same order.

Weights are float32 there and float64 here, so the cases' borders are apart by more than rounding: drawn from seeds
that are fixed.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import triton
from torch import Tensor

from engine import philox, sampler
from kvferry_kernels.gpu import philox as gpu_philox
from kvferry_kernels.gpu import row_reference, sampling
from protocol.sampling import Sampling

VOCAB = 600


@dataclass(frozen=True, slots=True)
class Row:
    """A row's settings; the defaults draw from all."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 1
    choice: int = 0
    position: int = 0


def noise(num_rows: int, vocab: int = VOCAB, seed: int = 0) -> Tensor:
    return torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def choose(logits: Tensor, rows: list[Row], device: str, allowed: Tensor | None = None) -> list[int]:
    def column(name: str, dtype: torch.dtype) -> Tensor:
        return torch.tensor([getattr(row, name) for row in rows], dtype=dtype, device=device)

    floats = [column(name, torch.float32) for name in ("temperature", "top_p", "min_p")]
    whole = [column(name, torch.int32) for name in ("top_k", "choice", "position")]
    tokens = sampling.sample(
        logits.to(device), floats[0], whole[0], floats[1], floats[2], column("seed", torch.int64), whole[1], whole[2],
        None if allowed is None else bits_of(allowed).to(device),
    )  # fmt: skip
    return [int(token) for token in tokens]


def bits_of(allowed: Tensor) -> Tensor:
    """Bool ``[num_rows, vocab]`` as int32 words."""
    padded = torch.nn.functional.pad(allowed, (0, -allowed.shape[1] % 32))
    packed = np.packbits(padded.numpy(), axis=1, bitorder="little")
    return torch.from_numpy(packed.view(np.int32))


def expected(logits: Tensor, row: Row, allowed: Tensor | None = None) -> int:
    number = philox.uniform(row.seed % 2**64, row.choice, row.position)
    return row_reference.draw(logits, number, row.temperature, row.top_k, row.top_p, row.min_p, allowed)


def each_expected(logits: Tensor, rows: list[Row]) -> list[int]:
    return [expected(*pair) for pair in zip(logits, rows, strict=True)]


@triton.jit
def uniform_kernel(
    out_ptr: triton.language.tensor,
    seeds_ptr: triton.language.tensor,
    choices_ptr: triton.language.tensor,
    positions_ptr: triton.language.tensor,
) -> None:
    place = triton.language.program_id(0)
    seed, choice = triton.language.load(seeds_ptr + place), triton.language.load(choices_ptr + place)
    position = triton.language.load(positions_ptr + place)
    triton.language.store(out_ptr + place, gpu_philox.uniform(seed, choice, position))


def test_random_numbers_are_the_engines_to_the_bit(device: str) -> None:
    top = 2**63 - 1
    cases = [(0, 0, 0), (1, 2, 3), (-1, 127, 2**31 - 1), (top, 0, 1), (-top, 1, 0), (0x123456789ABCDEF, 5, 70000)]
    out = torch.empty(len(cases), dtype=torch.float64, device=device)
    seeds = torch.tensor([case[0] for case in cases], device=device)
    choices, positions = (torch.tensor([c[i] for c in cases], dtype=torch.int32, device=device) for i in (1, 2))
    uniform_kernel[(len(cases),)](out, seeds, choices, positions)
    assert out.tolist() == [philox.uniform(seed % 2**64, choice, position) for seed, choice, position in cases]


@pytest.mark.parametrize("vocab", [1, 33, VOCAB, 5000])
def test_the_greedy_choice_is_the_first_of_equal_maxima(device: str, vocab: int) -> None:
    logits = noise(3, vocab)
    logits[1] = 0.5
    logits[2, vocab // 2] = logits[2, vocab - 1] = 99.0
    rows = [Row(temperature=0.0), Row(top_k=1), Row(temperature=0.0, top_p=0.3)]
    assert choose(logits, rows, device) == [int(logits[0].argmax()), 0, vocab // 2]


def test_draws_with_every_filter_are_the_references(device: str) -> None:
    kinds = [
        Row(),
        Row(temperature=0.6, seed=-5),
        Row(top_k=7, choice=1),
        Row(top_k=50, temperature=3.0),
        Row(top_k=VOCAB),
        Row(top_k=VOCAB + 5, position=9),
        Row(top_k=599, temperature=5.0),
        Row(top_p=0.9, seed=2**62),
        Row(top_p=0.01),
        Row(top_p=0.0),
        Row(top_p=0.999, temperature=3.0),
        Row(min_p=0.05, temperature=2.0),
        Row(min_p=1.0),
        Row(top_k=40, top_p=0.8, min_p=0.02, temperature=1.5),
        Row(top_k=3, top_p=0.99, seed=11),
    ]
    logits = noise(len(kinds))
    assert choose(logits, kinds, device) == each_expected(logits, kinds)


def test_equal_logits_are_kept_by_id_as_far_as_filters_go(device: str) -> None:
    logits = noise(12).round()
    kinds = [Row(temperature=2.0, top_k=k, top_p=p) for k in (0, 20, 300) for p in (0.5, 0.9)]
    rows = [replace(row, seed=seed) for seed in (3, 4) for row in kinds]
    assert choose(logits, rows, device) == each_expected(logits, rows)


def test_top_k_tells_neighbors_among_floats_apart(device: str) -> None:
    order = torch.randperm(40, generator=torch.Generator().manual_seed(5))
    logits = (1.0 + order * 2.0**-23).repeat(6, 1)
    rows = [Row(top_k=5, seed=seed) for seed in range(6)]
    chosen = choose(logits, rows, device)
    assert chosen == each_expected(logits, rows)
    assert all(order[token] >= 35 for token in chosen)


def test_rows_of_many_tiles_are_drawn_as_by_the_reference(device: str) -> None:
    logits = noise(4, 9001, seed=2)
    rows = [Row(temperature=4.0), Row(top_k=1500, temperature=4.0), Row(top_k=60), Row(top_p=0.95, temperature=2.0)]
    assert choose(logits, rows, device) == each_expected(logits, rows)


@pytest.mark.parametrize("seed", [3, 2**40 + 1])
def test_tokens_are_those_of_the_engine(device: str, seed: int) -> None:
    logits = noise(3, seed=seed % 100)
    kinds = [{"top_p": 0.85}, {"top_k": 30, "temperature": 1.3}, {"min_p": 0.01, "temperature": 0.8}]
    asked = [sampler.Row(i, i, Sampling(seed=seed, **kind), (1,), (4,) * i) for i, kind in enumerate(kinds)]
    chosen = sampler.sample(logits.numpy(), asked)
    rows = [Row(seed=seed, choice=i, position=i, **kind) for i, kind in enumerate(kinds)]
    assert choose(logits, rows, device) == [one.token_id for one in chosen if isinstance(one, sampler.Sampled)]


def test_only_what_is_allowed_is_chosen_and_filters_count_nothing_else(device: str) -> None:
    logits = noise(6)
    allowed = torch.rand(6, VOCAB, generator=torch.Generator().manual_seed(1)) < 0.2
    allowed[0] = False
    allowed[0, 599] = True
    rows = [Row(), Row(temperature=0.0), Row(top_k=5), Row(top_k=300), Row(top_p=0.7), Row(min_p=0.3)]
    wanted = [expected(*row) for row in zip(logits, rows, allowed, strict=True)]
    assert choose(logits, rows, device, allowed) == wanted
    assert wanted[0] == 599


def test_zeros_of_both_signs_are_equal_and_minus_infinity_has_no_weight(device: str) -> None:
    logits = torch.full((4, 40), -torch.inf)
    logits[:, 3], logits[:, 30] = -0.0, 0.0
    rows = [Row(top_p=0.5, seed=seed) for seed in range(2)] + [Row(top_k=30, seed=seed) for seed in (2, 3)]
    chosen = choose(logits, rows, device)
    assert chosen[:2] == [3, 3]
    assert chosen == each_expected(logits, rows)
    assert set(chosen) <= {3, 30}


@pytest.mark.filterwarnings("ignore:overflow")  # of the interpreter: minus infinity is meant
def test_a_tiny_temperature_is_greedy(device: str) -> None:
    logits = torch.tensor([[3e4, -3e4, 2.9e4]])
    assert choose(logits, [Row(temperature=1e-37)], device) == [0]


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_row_without_a_finite_maximum_has_no_token_and_the_others_have_theirs(device: str) -> None:
    logits = noise(5, 40)
    logits[0, 7], logits[2, 9], logits[3] = torch.nan, torch.inf, -torch.inf
    rows = [Row()] * 5
    chosen = choose(logits, rows, device)
    assert [chosen[i] for i in (0, 2, 3)] == [-1, -1, -1]
    assert [chosen[1], chosen[4]] == [expected(logits[1], rows[1]), expected(logits[4], rows[4])]


def test_a_row_has_the_same_token_alone_and_in_a_batch(device: str) -> None:
    logits, rows = noise(3), [Row(top_p=0.9), Row(seed=8), Row(top_k=20)]
    together = choose(logits, rows, device)
    assert [choose(logits[i : i + 1], rows[i : i + 1], device)[0] for i in (2, 0)] == [together[2], together[0]]


def test_no_rows_are_no_work(device: str) -> None:
    assert choose(noise(0), [], device) == []
