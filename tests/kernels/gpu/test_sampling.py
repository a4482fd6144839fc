"""Tokens that a GPU chooses are those that a CPU chooses of the same logits, all of them."""

from itertools import product

import numpy as np
import pytest
import torch
import triton
from torch import Tensor

from engine import philox
from kvferry_kernels import sampling_reference
from kvferry_kernels.gpu import philox as gpu_philox
from kvferry_kernels.gpu import sampling
from kvferry_kernels.gpu.ranking import weight_of
from kvferry_kernels.gpu.sampling import Ask
from kvferry_kernels.gpu.shipped import EXACT
from kvferry_kernels.sampling import NONE_LEFT, NOT_FINITE, choose_tokens
from kvferry_kernels.sampling_reference import Choice, Words

VOCAB = 600


def noise(num_rows: int, vocab: int = VOCAB, seed: int = 0) -> Tensor:
    return torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def each(*asks: Ask) -> list[Ask]:
    """One a row."""
    return [ask._replace(row=row) for row, ask in enumerate(asks)]


def bits_of(allowed: Tensor) -> Tensor:
    """Bool ``[num_masks, vocab]`` as int32 words."""
    padded = torch.nn.functional.pad(allowed, (0, -allowed.shape[1] % 32))
    packed = np.packbits(padded.numpy(), axis=1, bitorder="little")
    return torch.from_numpy(packed.view(np.int32))


def choose(logits: Tensor, asks: list[Ask], device: str, allowed: Tensor | None = None) -> list[int]:
    masks = None if allowed is None else bits_of(allowed).to(device)
    chosen = sampling.sample(logits.to(device), sampling.records(asks).to(device), masks)
    return [int(token) for token in chosen]


def as_choice(ask: Ask) -> Choice:
    number = philox.uniform(ask.seed, ask.choice, ask.position)
    return Choice(ask.row, ask.mask, ask.top_k, ask.temperature, ask.top_p, ask.min_p, number)


def expected(logits: Tensor, asks: list[Ask], allowed: Tensor | None = None) -> list[int]:
    """What the CPU's kernel chooses, and its twin."""
    choices = [as_choice(ask) for ask in asks]
    masks: list[Words] = [] if allowed is None else list(bits_of(allowed).numpy().view(np.uint32))
    found = choose_tokens(logits.numpy(), choices, masks)
    with np.errstate(invalid="ignore"):
        assert sampling_reference.choose_tokens(logits.numpy(), choices, masks, None) == found
    return found


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


@triton.jit
def weigh_kernel(
    out_ptr: triton.language.tensor,
    logits_ptr: triton.language.tensor,
    peak: triton.language.tensor,
    scale: triton.language.tensor,
) -> None:
    places = triton.language.arange(0, 4096)
    logits = triton.language.load(logits_ptr + places)
    triton.language.store(out_ptr + places, weight_of(logits, peak, scale))


def test_random_numbers_are_the_engines_to_the_bit(device: str) -> None:
    top = 2**63 - 1
    cases = [(0, 0, 0), (1, 2, 3), (-1, 127, 2**31 - 1), (top, 0, 1), (-top, 1, 0), (0x123456789ABCDEF, 5, 70000)]
    out = torch.empty(len(cases), dtype=torch.float64, device=device)
    seeds = torch.tensor([case[0] for case in cases], device=device)
    choices, positions = (torch.tensor([c[i] for c in cases], dtype=torch.int32, device=device) for i in (1, 2))
    uniform_kernel[(len(cases),)](out, seeds, choices, positions)
    assert out.tolist() == [philox.uniform(seed % 2**64, choice, position) for seed, choice, position in cases]


@pytest.mark.filterwarnings("ignore:overflow")  # of the interpreter: minus infinity is meant
@pytest.mark.parametrize("temperature", [1e-40, 1e-3, 0.37, 1.0, 7.3, 1e37])
def test_weights_are_whole_numbers_to_the_last_unit(device: str, temperature: float) -> None:
    logits = torch.cat((torch.linspace(-40, 5, 4000), torch.tensor([-torch.inf, 4.999999] * 48)))
    logits *= min(temperature, 1e3)
    peak = logits.max()
    out = torch.empty(4096, dtype=torch.int64, device=device)
    scale = float(sampling_reference.scale_of(temperature))
    weigh_kernel[(1,)](out, logits.to(device), float(peak), scale, **EXACT)
    assert out.tolist() == sampling_reference.weights(logits.numpy(), peak.numpy()[()], temperature).tolist()


@pytest.mark.parametrize("vocab", [1, 33, VOCAB, 5000])
def test_the_greedy_choice_is_the_first_of_equal_maxima(device: str, vocab: int) -> None:
    logits = noise(3, vocab)
    logits[1] = 0.5
    logits[2, vocab // 2] = logits[2, vocab - 1] = 99.0
    asks = each(Ask(0, temperature=0.0), Ask(0, top_k=1), Ask(0, temperature=0.0, top_p=0.3))
    assert choose(logits, asks, device) == [int(logits[0].argmax()), 0, vocab // 2]


def test_draws_with_every_filter_are_the_cpus(device: str) -> None:
    asks = each(
        Ask(0),
        Ask(0, temperature=0.6, seed=-5 % 2**64),
        Ask(0, top_k=7, choice=1),
        Ask(0, top_k=50, temperature=3.0),
        Ask(0, top_k=VOCAB),
        Ask(0, top_k=VOCAB + 5, position=9),
        Ask(0, top_k=2**40),
        Ask(0, top_k=599, temperature=5.0),
        Ask(0, top_p=0.9, seed=2**62),
        Ask(0, top_p=0.01),
        Ask(0, top_p=0.0),
        Ask(0, top_p=0.999, temperature=3.0),
        Ask(0, min_p=0.05, temperature=2.0),
        Ask(0, min_p=1.0),
        Ask(0, top_k=40, top_p=0.8, min_p=0.02, temperature=1.5),
        Ask(0, top_k=3, top_p=0.99, seed=11),
    )
    logits = noise(len(asks))
    assert choose(logits, asks, device) == expected(logits, asks)


def test_many_draws_from_few_rows_are_the_cpus(device: str) -> None:
    kinds = [Ask(0), Ask(0, top_p=0.9), Ask(0, top_k=20, temperature=0.7), Ask(0, min_p=0.1, temperature=1.3)]
    asks = [
        kind._replace(row=row, seed=seed * 7919, position=seed) for kind, row, seed in product(kinds, (2, 0), range(5))
    ]
    logits = noise(3, 90, seed=4)
    chosen = choose(logits, asks, device)
    assert chosen == expected(logits, asks)
    assert len(set(chosen)) > 3


def test_equal_logits_are_kept_by_id_as_far_as_filters_go(device: str) -> None:
    logits = noise(12).round()
    kinds = [Ask(0, temperature=2.0, top_k=k, top_p=p) for k in (0, 20, 300) for p in (0.5, 0.9)]
    asks = each(*(ask._replace(seed=seed) for seed in (3, 4) for ask in kinds))
    assert choose(logits, asks, device) == expected(logits, asks)


def test_draws_at_the_very_borders_of_filters_are_the_cpus(device: str) -> None:
    logits = torch.zeros(1, 64)  # equal weights: shares are whole numbers of ids, and just above or below them
    shares = [n / 64 + off for n in (1, 2, 31, 63) for off in (0.0, 2.0**-53, -(2.0**-53))]
    asks = [Ask(0, top_p=share, seed=seed) for seed, share in enumerate(shares)]
    asks += [Ask(0, top_k=k, top_p=0.5, seed=seed) for seed, k in enumerate((3, 10))]
    assert choose(logits, asks, device) == expected(logits, asks)


def test_top_k_tells_neighbors_among_floats_apart(device: str) -> None:
    order = torch.randperm(40, generator=torch.Generator().manual_seed(5))
    logits = (1.0 + order * 2.0**-23).repeat(6, 1)
    asks = each(*(Ask(0, top_k=5, seed=seed) for seed in range(6)))
    chosen = choose(logits, asks, device)
    assert chosen == expected(logits, asks)
    assert all(order[token] >= 35 for token in chosen)


def test_rows_of_many_tiles_are_drawn_as_by_the_cpu(device: str) -> None:
    logits = noise(5, 9001, seed=2)
    asks = each(
        Ask(0, temperature=4.0),
        Ask(0, top_k=1500, temperature=4.0),
        Ask(0, top_k=60),
        Ask(0, top_p=0.95, temperature=2.0),
        Ask(0, top_k=1100, temperature=0.05),  # more than have any weight
    )
    assert choose(logits, asks, device) == expected(logits, asks)


def test_only_what_is_allowed_is_chosen_and_filters_count_nothing_else(device: str) -> None:
    logits = noise(6)
    allowed = torch.rand(3, VOCAB, generator=torch.Generator().manual_seed(1)) < 0.2
    allowed[0] = False
    allowed[0, 599] = True
    kinds = [Ask(0), Ask(0, temperature=0.0), Ask(0, top_k=5), Ask(0, top_k=300), Ask(0, top_p=0.7), Ask(0, min_p=0.3)]
    asks = [ask._replace(mask=mask) for ask, mask in zip(each(*kinds), (0, 1, 2, -1, 1, 2), strict=True)]
    chosen = choose(logits, asks, device, allowed)
    assert chosen == expected(logits, asks, allowed)
    assert chosen[0] == 599


def test_zeros_of_both_signs_are_equal_and_minus_infinity_has_no_weight(device: str) -> None:
    logits = torch.full((4, 40), -torch.inf)
    logits[:, 3], logits[:, 30] = -0.0, 0.0
    asks = each(*(Ask(0, top_p=0.5, seed=seed) for seed in range(2)), *(Ask(0, top_k=30, seed=seed) for seed in (2, 3)))
    chosen = choose(logits, asks, device)
    assert chosen[:2] == [3, 3]
    assert chosen == expected(logits, asks)
    assert set(chosen) <= {3, 30}


@pytest.mark.filterwarnings("ignore:overflow")  # of the interpreter: minus infinity is meant
def test_a_tiny_temperature_is_all_but_greedy_and_a_huge_one_is_fair(device: str) -> None:
    logits = torch.tensor([[3e4, -3e4, 2.9e4], [1.0, 2.0, 3.0]])
    asks = each(Ask(0, temperature=1e-300), Ask(0, temperature=1e300, seed=5))
    assert choose(logits, asks, device) == expected(logits, asks)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_row_without_a_finite_maximum_has_no_token_and_the_others_have_theirs(device: str) -> None:
    logits = noise(6, 40)
    logits[0, 7], logits[2, 9], logits[3] = torch.nan, torch.inf, -torch.inf
    allowed = torch.zeros(1, 40, dtype=torch.bool)
    allowed[0, 3] = True
    logits[5, 3] = -torch.inf
    asks = [*each(*([Ask(0)] * 6)), Ask(0, mask=0), Ask(2, mask=0), Ask(5, mask=0), Ask(1, mask=0)]
    chosen = choose(logits, asks, device, allowed)
    assert chosen == expected(logits, asks, allowed)
    assert [chosen[i] for i in (0, 2, 3, 6, 7)] == [NOT_FINITE] * 5
    assert chosen[8:] == [NONE_LEFT, 3]


def test_a_token_is_the_same_alone_and_beside_others(device: str) -> None:
    logits, asks = noise(3), each(Ask(0, top_p=0.9), Ask(0, seed=8), Ask(0, top_k=20))
    together = choose(logits, asks, device)
    assert [choose(logits, [asks[i]], device)[0] for i in (2, 0)] == [together[2], together[0]]


def test_nothing_is_asked_and_nothing_chosen(device: str) -> None:
    assert choose(noise(1), [], device) == []
