"""Each row's token is a function of the row and its request; every setting does what its name says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from engine.logprobs import token_logprob
from engine.penalties import adjust_logits
from engine.ranking import highest
from engine.sampler import Row, Sampled, SamplingError, sample
from protocol.sampling import Sampling

GREEDY = Sampling(temperature=0.0, max_tokens=100)
Floats = npt.NDArray[np.float32]


def floats(*values: float) -> Floats:
    return np.array(values, np.float32)


def noise(seed: int = 0, vocab: int = 600) -> Floats:
    return (np.random.default_rng(seed).standard_normal(vocab) * 3).astype(np.float32)


def one(
    logits: Floats,
    sampling: Sampling,
    *,
    prompt: tuple[int, ...] = (1,),
    output: tuple[int, ...] = (),
    choice: int = 0,
) -> int:
    return chosen(logits, Row(0, choice, sampling, prompt, output)).token_id


def chosen(logits: Floats, row: Row) -> Sampled:
    (made,) = sample(logits[None], [row])
    if isinstance(made, SamplingError):
        raise made
    return made


def frequencies(logits: Floats, sampling: Sampling, draws: int = 4000) -> Floats:
    counts = np.zeros(len(logits), np.float32)
    for seed in range(draws):
        counts[one(logits, replace(sampling, seed=seed * 7919))] += 1
    return counts / draws


def test_greedy_takes_the_lowest_id_among_equal_maxima() -> None:
    assert one(floats(1, 5, 3, 5, 5), GREEDY) == 1


def test_draws_follow_the_softmax_at_the_temperature() -> None:
    logits = floats(0, 1, 2, -1)
    for temperature in (0.7, 1.0, 1.6):
        weights = np.exp(logits / temperature)
        seen = frequencies(logits, Sampling(temperature=temperature))
        assert np.abs(seen - weights / weights.sum()).max() < 0.03


def test_a_row_gets_the_same_token_whatever_batch_it_is_in() -> None:
    rows = np.stack([noise(seed) for seed in range(6)])
    kinds = [
        Sampling(seed=1),
        GREEDY,
        Sampling(seed=2, top_p=0.8),
        Sampling(seed=3, top_k=7),
        Sampling(seed=4, min_p=0.1, temperature=0.6),
        Sampling(seed=5, repetition_penalty=1.2, logprobs=3),
    ]
    output = (3, 4, 4)
    wanted = [Row(i, i % 2, kind, (1, 2), output) for i, kind in enumerate(kinds)]
    together = sample(rows, wanted)
    alone = [sample(rows[i : i + 1], [replace(row, logits_row=0)])[0] for i, row in enumerate(wanted)]
    assert together == alone
    assert sample(rows[::-1].copy(), [replace(r, logits_row=5 - r.logits_row) for r in wanted]) == alone


def test_tokens_differ_by_seed_choice_and_position_but_not_by_chance() -> None:
    logits = noise() / 10
    base = Sampling(seed=9)
    assert one(logits, base) == one(logits, base)
    others = {
        one(logits, replace(base, seed=10)),
        one(logits, base, choice=1),
        one(logits, base, output=(1,)),
    }
    assert len(others | {one(logits, base)}) == 4


def test_top_k_keeps_the_k_highest_and_of_equals_the_lowest_ids() -> None:
    logits = floats(1, 2, 2, 2, 0)
    seen = frequencies(logits, Sampling(top_k=2), 400)
    assert seen[1] + seen[2] == 1
    assert seen[1] > 0.3 < seen[2]


def test_top_k_one_is_greedy() -> None:
    assert one(floats(1, 5, 5), Sampling(top_k=1)) == 1


def test_top_p_keeps_the_shortest_beginning_that_reaches_it() -> None:
    logits = np.log(floats(0.1, 0.5, 0.25, 0.15))
    assert set(np.flatnonzero(frequencies(logits, Sampling(top_p=0.4999), 300))) == {1}
    assert set(np.flatnonzero(frequencies(logits, Sampling(top_p=0.6), 300))) == {1, 2}
    assert set(np.flatnonzero(frequencies(logits, Sampling(top_p=0.8), 300))) == {1, 2, 3}
    assert set(np.flatnonzero(frequencies(logits, Sampling(top_p=1e-9), 50))) == {1}


def test_top_p_counts_within_what_top_k_kept() -> None:
    logits = np.log(floats(0.4, 0.3, 0.2, 0.1))
    kept = frequencies(logits, Sampling(top_k=2, top_p=0.55), 300)
    assert set(np.flatnonzero(kept)) == {0}


def test_min_p_drops_what_is_unlikely_beside_the_likeliest() -> None:
    logits = np.log(floats(0.5, 0.3, 0.15, 0.05))
    seen = frequencies(logits, Sampling(min_p=0.29), 400)
    assert set(np.flatnonzero(seen)) == {0, 1, 2}


@pytest.mark.parametrize("temperature", [1e-6, 1e-300, 5e-324])
def test_a_tiny_temperature_does_not_overflow(temperature: float) -> None:
    assert one(floats(3e4, -3e4, 2.9e4), Sampling(temperature=temperature)) == 0


def test_repetition_divides_positive_and_multiplies_negative_logits_of_prompt_and_output() -> None:
    logits = floats(4, 4, -4, -4, 4)
    adjust_logits(logits, replace(GREEDY, repetition_penalty=2.0), (0, 2), (0, 1, 1))
    assert logits.tolist() == [2, 2, -8, -4, 4]


def test_presence_counts_an_output_id_once_and_frequency_each_time() -> None:
    logits = floats(0, 0, 0, 0)
    sampling = replace(GREEDY, presence_penalty=1.0, frequency_penalty=0.5)
    adjust_logits(logits, sampling, (0, 0, 3), (1, 2, 2, 2))
    assert logits.tolist() == [0, -1.5, -2.5, 0]


def test_bias_comes_before_penalties_and_may_forbid() -> None:
    logits = floats(1, 3, 2)
    adjust_logits(logits, replace(GREEDY, logit_bias=((0, 4.0),), repetition_penalty=5.0), (0,), ())
    assert logits.tolist() == [1, 3, 2]
    assert one(floats(1, 3, 2), replace(GREEDY, logit_bias=((1, -100.0),))) == 2


def test_ending_ids_are_masked_until_min_tokens_exist() -> None:
    logits = floats(1, 9, 8, 0)
    sampling = replace(GREEDY, eos_ids=(1, 777), stop_token_ids=(2,), min_tokens=2)
    assert one(logits, sampling) == 0
    assert one(logits, sampling, output=(5,)) == 0
    assert one(logits, sampling, output=(5, 5)) == 1
    assert one(logits, replace(sampling, ignore_eos=True)) == 1


def test_a_row_whose_likeliest_id_is_allowed_is_chosen_as_if_nothing_were_banned() -> None:
    logits = noise()
    banned = tuple(int(token) for token in np.argsort(logits)[:-1])
    for sampling in (GREEDY, Sampling(top_k=1), replace(GREEDY, logprobs=2)):
        row = Row(0, 0, sampling, (1,), ())
        assert chosen(logits, replace(row, sampling=replace(sampling, stop_token_ids=banned, min_tokens=1))) == chosen(
            logits, row
        )


def test_a_drawn_token_is_never_one_that_ends_too_early() -> None:
    logits = floats(0, 0, 0, 0)
    sampling = Sampling(stop_token_ids=(1, 3), min_tokens=1)
    assert {one(logits, replace(sampling, seed=seed)) for seed in range(40)} == {0, 2}


def test_adjusting_leaves_the_models_logits_as_they_are() -> None:
    logits = noise()
    before = logits.copy()
    busy = Sampling(logit_bias=((1, 5.0),), repetition_penalty=1.3, min_tokens=3, eos_ids=(2,))
    one(logits, busy, output=(1, 2))
    assert np.array_equal(logits, before)


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = np.log(floats(0.1, 0.6, 0.3))
    sampling = replace(GREEDY, logit_bias=((0, 50.0),), logprobs=2)
    made = chosen(logits, Row(0, 0, sampling, (1,), ()))
    assert made.token_id == 0
    assert made.logprob is not None
    assert made.logprob.logprob == pytest.approx(np.log(0.1), abs=1e-6)
    assert made.logprob.top_ids == (1, 2)
    assert made.logprob.top_logprobs == pytest.approx((np.log(0.6), np.log(0.3)), abs=1e-6)


def test_zero_logprobs_report_the_chosen_token_alone_and_minus_one_nothing() -> None:
    logits = noise()
    zero = chosen(logits, Row(0, 0, replace(GREEDY, logprobs=0), (1,), ())).logprob
    assert zero is not None
    assert (zero.top_ids, zero.top_logprobs) == ((), ())
    assert chosen(logits, Row(0, 0, GREEDY, (1,), ())).logprob is None


def test_minus_infinity_is_reported_as_a_number() -> None:
    made = token_logprob(floats(0, -np.inf, -np.inf), 1, 3)
    assert made.logprob == -9999.0
    assert made.top_logprobs == (0.0, -9999.0, -9999.0)
    assert made.top_ids == (0, 1, 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_numbers_are_an_error(bad: float) -> None:
    with pytest.raises(SamplingError, match="no finite maximum"):
        one(floats(1, bad, 2), GREEDY)


def test_a_request_that_forbids_everything_is_an_error() -> None:
    with pytest.raises(SamplingError, match="no token"):
        one(floats(1, 2), replace(GREEDY, min_tokens=1, stop_token_ids=(0, 1)))


@pytest.mark.parametrize("count", [0, 1, 3, 5, 9])
def test_ranking_equals_a_stable_sort(count: int) -> None:
    values = floats(1, 3, 3, 2, 3, -1, 0)
    assert highest(values, count).tolist() == np.argsort(-values, kind="stable")[:count].tolist()


def test_a_row_without_a_token_does_not_keep_the_others_from_theirs() -> None:
    rows = [Row(0, 0, GREEDY, (1,), ()), Row(1, 0, GREEDY, (1,), ())]
    bad, good = sample(np.stack([floats(np.nan, 1), floats(0, 1)]), rows)
    assert isinstance(bad, SamplingError)
    assert good == Sampled(1, None)
