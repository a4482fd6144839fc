"""Tokens chosen from rows of logits: what is promised in sampling.py, on every library and the twin, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry_kernels import native, ops, sampling_reference
from kvferry_kernels.sampling import NONE_LEFT, NOT_FINITE, choose_tokens, num_words
from kvferry_kernels.sampling_reference import Choice, Floats, Words

PLAIN = Choice(row=0, mask=-1, top_k=0, temperature=1.0, top_p=1.0, min_p=0.0, number=0.5)
NUMBERS = (1e-300, 1e-9, 0.1, 0.4999, 0.77, 0.999999, 1.0)


def noise(vocab: int, seed: int = 0, spread: float = 3.0) -> Floats:
    return (np.random.default_rng(seed).standard_normal((1, vocab)) * spread).astype(np.float32)


def mask_of(ids: Sequence[int], vocab: int) -> Words:
    bits = np.zeros(32 * num_words(vocab), np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


def slow(logits: Floats, choice: Choice, allowed: Sequence[int]) -> int:
    """The definition in plain Python; what ids weigh is the twin's, and tested by itself."""
    peak = max(logits[allowed])
    hidden = np.full_like(logits, -np.inf)
    hidden[allowed] = logits[allowed]
    weights = sampling_reference.weights(hidden, peak, choice.temperature).tolist()
    ranked = sorted((each for each in allowed if weights[each]), key=lambda each: (-logits[each], each))
    if choice.top_k:
        ranked = ranked[: choice.top_k]
    if choice.top_p < 1:
        ranked = beginning(ranked, weights, choice.top_p)
    ranked = [each for each in ranked if weights[each] >= choice.min_p * 2**44]
    return beginning(sorted(ranked), weights, choice.number)[-1]


def beginning(ids: list[int], weights: list[int], share: float) -> list[int]:
    need, total = share * float(sum(weights[each] for each in ids)), 0
    for place, each in enumerate(ids):
        total += weights[each]
        if total >= need:
            return ids[: place + 1]
    return ids


FILTERS = [
    PLAIN._replace(top_k=k, top_p=p, min_p=least, temperature=temperature)
    for k, p, least, temperature in [
        *((0, 1.0, 0.0, temperature) for temperature in (0.05, 0.8, 2.0)),
        *((k, 1.0, 0.0, 1.0) for k in (2, 5, 40, 500, 10**6)),
        *((0, p, 0.0, temperature) for p, temperature in product((1e-9, 0.3, 0.9, 0.999, 1 - 1e-16), (0.3, 1.0, 5.0))),
        *((0, 1.0, least, 1.0) for least in (1e-12, 0.01, 0.5, 1.0)),
        (30, 0.7, 0.0, 0.9), (30, 1.0, 0.05, 0.9), (0, 0.95, 0.02, 0.9), (700, 0.99, 1e-3, 1.5),
    ]
]  # fmt: skip


@pytest.mark.parametrize("vocab", [1, 7, 31, 256, 777, 1500])
@pytest.mark.parametrize("share", [1.0, 0.9, 0.02], ids=["all", "most", "few"])
def test_a_token_is_the_one_of_the_definition(kernels: str, vocab: int, share: float) -> None:
    logits = np.round(noise(vocab), 1)  # rounding makes ties
    random = np.random.default_rng(vocab)
    allowed = sorted({*np.flatnonzero(random.random(vocab) < share).tolist(), int(random.integers(vocab))})
    masks = [mask_of(allowed, vocab)] if share < 1 else []
    allowed = allowed if masks else list(range(vocab))
    choices = [each._replace(number=number, mask=len(masks) - 1) for each in FILTERS for number in NUMBERS]
    made = choose_tokens(logits, choices, masks)
    assert made == [slow(logits[0], each, allowed) for each in choices]


def test_every_library_draws_the_twins_tokens() -> None:
    vocab = 49_152
    logits = np.concatenate((noise(vocab), np.round(noise(vocab, 1, 0.2), 2), noise(vocab, 2, 9.0), noise(vocab) * 0))
    random = np.random.default_rng(1)
    masks = [mask_of(np.flatnonzero(random.random(vocab) < share).tolist(), vocab) for share in (0.9, 0.01)]
    choices = [
        each._replace(row=row, mask=mask, number=float(random.random()))
        for each, row, mask in product(FILTERS, range(4), (-1, 0, 1))
    ]
    expected = sampling_reference.choose_tokens(logits, choices, masks, None)
    for name in native.available():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ops, "KERNELS", native.open_library(name))
            assert choose_tokens(logits, choices, masks) == expected, name


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-60, 60, width=32) | st.just(-np.inf), min_size=1, max_size=600),
    st.builds(
        Choice,
        st.just(0),
        st.just(-1),
        st.integers(0, 700),
        st.floats(0.0, 1e3),
        st.floats(1e-9, 1.0),
        st.floats(0.0, 1.0),
        st.floats(1e-300, 1.0),
    ),
)
def test_whatever_is_asked_of_whatever_row_every_library_agrees(row: list[float], choice: Choice) -> None:
    logits = np.array([row], np.float32)
    expected = sampling_reference.choose_tokens(logits, [choice], (), None)
    for name in native.available():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ops, "KERNELS", native.open_library(name))
            assert choose_tokens(logits, [choice]) == expected, name


def test_a_weight_is_the_exponential_of_its_logit_to_a_millionth() -> None:
    logits = np.linspace(-20, 11, 100_001, dtype=np.float32)
    for temperature in (0.3, 1.0, 1.7):
        exact = np.exp((logits.astype(np.float64) - float(logits[-1])) / temperature)
        weights = sampling_reference.weights(logits, logits[-1], temperature) / 2.0**44
        assert weights[-1] == 1
        error = np.abs(weights - exact)
        assert (error <= 2**-45 + 2e-6 * exact).all()
        assert error.max() < 2e-7


@pytest.mark.parametrize(
    "choice",
    [PLAIN._replace(temperature=0.8), PLAIN._replace(top_k=20), PLAIN._replace(top_p=0.9), PLAIN._replace(min_p=0.02)],
    ids=["plain", "top_k", "top_p", "min_p"],
)
def test_draws_follow_the_exact_probabilities(kernels: str, choice: Choice) -> None:
    """Chi-square over ids of five draws expected at least; its bound is passed by chance once in 10^6."""
    logits, draws = noise(1000, 4, 1.5), 20_000
    weights = np.exp((logits[0].astype(np.float64) - logits.max()) / choice.temperature)
    order = np.argsort(-weights, kind="stable")
    sums = np.cumsum(weights[order])
    kept = order[: choice.top_k or int(np.searchsorted(sums, choice.top_p * sums[-1])) + 1]
    kept = kept[weights[kept] >= choice.min_p]
    expected = np.zeros(1000)
    expected[kept] = weights[kept] / weights[kept].sum() * draws
    numbers = np.random.default_rng(5).random(draws)
    made = np.bincount(choose_tokens(logits, [choice._replace(number=1 - each) for each in numbers]), minlength=1000)
    assert made[expected == 0].sum() == 0
    frequent = expected >= 5
    rest = (made[~frequent].sum(), expected[~frequent].sum())
    pairs = [*zip(made[frequent], expected[frequent], strict=True), *([rest] if rest[1] > 0 else [])]
    chi_square = sum((seen - wanted) ** 2 / wanted for seen, wanted in pairs)
    freedom = len(pairs) - 1
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom) + 25


def test_the_number_one_draws_the_last_id_of_weight_however_large_the_sum(kernels: str) -> None:
    logits = np.zeros((1, 5001), np.float32)
    logits[0, 5000] = -30  # of two units, beside a sum whose last place in float64 is 16 units
    assert choose_tokens(logits, [PLAIN._replace(number=1.0)]) == [5000]


def test_a_row_gets_its_token_whatever_is_beside_it(kernels: str, threads: None) -> None:
    logits = np.concatenate([noise(3000, seed) for seed in range(5)])
    masks = [mask_of(range(0, 3000, step), 3000) for step in (1, 3, 700)]
    choices = [
        each._replace(row=i % 5, mask=i % 4 - 1, number=(i + 1) / 100) for i, each in enumerate((*FILTERS, PLAIN))
    ]
    alone = [choose_tokens(logits[each.row : each.row + 1], [each._replace(row=0)], masks)[0] for each in choices]
    for count in (1, 2):
        torch.set_num_threads(count)
        assert choose_tokens(logits, choices, masks) == alone
        assert choose_tokens(logits, choices[::-1], masks) == alone[::-1]
        assert choose_tokens(logits[:3], choices, masks, logits[3:].copy()) == alone


def test_without_temperature_the_first_of_the_highest_is_chosen(kernels: str) -> None:
    logits = noise(900)
    logits[0, [300, 500, 899]] = 20
    masks = [mask_of([7, 500, 899], 900), mask_of([899], 900), mask_of([5], 900)]
    greedy = PLAIN._replace(temperature=0.0)
    choices = [
        greedy,
        greedy._replace(mask=0),
        greedy._replace(mask=1),
        PLAIN._replace(top_k=1),
        greedy._replace(mask=2),
    ]
    assert choose_tokens(logits, choices, masks) == [300, 500, 899, 300, 5]


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-6, 1e300])
def test_no_temperature_overflows(kernels: str, temperature: float) -> None:
    logits = np.array([[3e4, -3e4, -np.inf, 2.9e4]], np.float32)
    made = choose_tokens(logits, [PLAIN._replace(temperature=temperature, number=number) for number in (0.01, 1.0)])
    assert made == ([0, 3] if temperature > 1 else [0, 0])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 5, 300])
def test_a_row_that_is_no_numbers_has_no_token_even_where_the_mask_hides_it(
    kernels: str, bad: float, place: int
) -> None:
    logits = np.concatenate((noise(301), noise(301)))
    logits[1, place] = bad
    choices = [PLAIN, PLAIN._replace(row=1), PLAIN._replace(row=1, mask=0, temperature=0.0)]
    made = choose_tokens(logits, choices, [mask_of([7], 301)])
    assert made[0] >= 0
    assert made[1:] == [NOT_FINITE, NOT_FINITE]


def test_minus_infinity_alone_is_no_number_either_and_what_a_mask_leaves_of_it_is_nothing(kernels: str) -> None:
    nothing = np.full((1, 40), -np.inf, np.float32)
    assert choose_tokens(nothing, [PLAIN]) == [NOT_FINITE]
    nothing[0, 3] = 1
    masks = [mask_of([2, 39], 40), mask_of([], 40), mask_of([2, 3], 40)]
    choices = [PLAIN._replace(mask=mask, temperature=heat) for mask in range(3) for heat in (0.0, 1.0)]
    assert choose_tokens(nothing, choices, masks) == [NONE_LEFT] * 4 + [3, 3]


def test_bits_beyond_the_vocabulary_allow_nothing(kernels: str) -> None:
    everything = np.full(2, 0xFFFFFFFF, np.uint32)
    for temperature in (0.0, 1.0):
        assert (
            choose_tokens(noise(33), [PLAIN._replace(mask=0, number=1.0, temperature=temperature)], [everything])[0]
            < 33
        )


def test_what_does_not_fit_is_refused() -> None:
    logits = noise(64)
    for wrong in (
        logits.astype(np.float64),
        np.asfortranarray(np.zeros((2, 4), np.float32)),
        np.zeros((1, 0), np.float32),
    ):
        with pytest.raises(ValueError, match=r"vocab|float32"):
            choose_tokens(wrong, [PLAIN])
    with pytest.raises(ValueError, match="float32"):
        choose_tokens(logits, [PLAIN], (), noise(63))
    with pytest.raises(ValueError, match="mask"):
        choose_tokens(logits, [PLAIN], [np.zeros(3, np.uint32)])
    for choice in (PLAIN._replace(row=1), PLAIN._replace(mask=0), PLAIN._replace(row=-1), PLAIN._replace(mask=-2)):
        with pytest.raises(IndexError):
            choose_tokens(logits, [choice])


def test_no_choice_is_no_token(kernels: str) -> None:
    assert choose_tokens(noise(64), []) == []
