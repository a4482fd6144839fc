"""Beside decoding a step takes as many prompt tokens as fit into the limit, as far as earlier steps tell."""

import pytest

from engine.step_budget import FIRST_GUESS, StepBudget

MS = 0.001


def learned(limit: float, decode: float, token: float) -> StepBudget:
    budget = StepBudget(limit)
    budget.learn(8, 0, decode)
    budget.learn(0, 512, 512 * token)
    return budget


def test_without_a_limit_prompts_get_what_a_step_holds() -> None:
    budget = StepBudget(0.0)
    budget.learn(8, 0, 1.0)
    assert budget.tokens(512) == 512


def test_the_first_prompt_beside_decoding_is_taken_in_small_bites() -> None:
    budget = StepBudget(50 * MS)
    assert budget.tokens(512) == FIRST_GUESS
    assert budget.tokens(32) == 32


def test_tokens_fill_what_decoding_leaves_of_the_limit() -> None:
    assert learned(50 * MS, 20 * MS, 0.5 * MS).tokens(512) == 48  # whole blocks of 60
    assert learned(50 * MS, 20 * MS, 0.5 * MS).tokens(32) == 32
    assert learned(500 * MS, 20 * MS, 0.5 * MS).tokens(512) == 512


def test_decoding_that_takes_all_of_the_limit_leaves_prompts_a_share() -> None:
    assert learned(50 * MS, 100 * MS, 0.5 * MS).tokens(512) == 96
    assert learned(50 * MS, 100 * MS, 9 * MS).tokens(512) == 16


def test_a_queue_of_prompts_gets_more_than_the_limit_leaves() -> None:
    budget = learned(50 * MS, 20 * MS, 0.5 * MS)
    assert budget.tokens(512, num_prompts=1) == 48
    assert budget.tokens(512, num_prompts=2) == 112  # whole blocks of three times what decoding takes


def test_a_mixed_step_tells_of_its_prompt_tokens_what_decoding_does_not_explain() -> None:
    budget = learned(50 * MS, 20 * MS, 0.5 * MS)
    for _ in range(40):
        budget.learn(8, 48, 20 * MS + 48 * 1 * MS)
    assert budget.tokens(512) == pytest.approx(30, abs=14)


def test_one_step_that_was_held_up_changes_little() -> None:
    budget = learned(50 * MS, 20 * MS, 0.5 * MS)
    budget.learn(0, 512, 30.0)
    assert budget.tokens(512) >= 32


def test_decoding_that_has_become_cheaper_does_not_make_prompts_look_free() -> None:
    budget = learned(50 * MS, 40 * MS, 0.5 * MS)
    for _ in range(100):
        budget.learn(4, 16, 8 * MS)
    assert budget.tokens(4096) <= 112


def test_a_few_tokens_tell_nothing_of_the_cost_of_one() -> None:
    budget = learned(50 * MS, 20 * MS, 0.5 * MS)
    for _ in range(100):
        budget.learn(8, 2, 20.01 * MS)
    assert budget.tokens(512) == 48
