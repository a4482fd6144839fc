"""Granted blocks become running choices exactly if what arrived is what was granted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.api import (
    Adopt,
    Broken,
    ChoiceTail,
    Grant,
    NewTokens,
    Released,
    StopChoice,
)
from tests.support.engine_rig import (
    GREEDY,
    KEY,
    HandOver,
    Rig,
    generate,
    names,
    only,
    prompt,
    tails,
)


def landed(rig: Rig, choices: tuple[ChoiceTail, ...] = (ChoiceTail(0),)) -> HandOver:
    hand_over = HandOver(Rig(), rig, prompt(40), GREEDY, choices, "k")
    hand_over.grant()
    return hand_over


def test_adopt_comes_as_often_as_it_likes() -> None:
    rig = Rig()
    hand_over = landed(rig)
    made = hand_over.prefill()
    hand_over.ship(made)
    adopt = hand_over.adopt_command(made)
    rig.submit(adopt, adopt)
    rig.step()
    assert rig.run(adopt, hand_over.grant_command())[0] == hand_over.granted
    assert [r.first_index for r in only(rig.results, NewTokens)] == list(range(1, 24))
    assert {r.num_cached_tokens for r in only(rig.results, NewTokens)} == {-1}


def test_adopted_prompt_blocks_are_in_the_cache() -> None:
    rig = Rig()
    HandOver(Rig(), rig, prompt(40), GREEDY, name="k").whole()
    generate(rig, prompt(40), name="next")
    assert only(rig.results, NewTokens)[-1].num_cached_tokens == 32


@pytest.mark.parametrize(
    "change",
    [
        {"prompt_ids": prompt(41)},
        {"tails": tails((1, 2))},
        {"tails": tails(())},
        {"tails": (ChoiceTail(3, (1,)),)},
        {"tails": ()},
    ],
)
def test_what_does_not_fit_its_grant_is_broken_and_freed(change: dict[str, Any]) -> None:
    rig = Rig()
    landed(rig)
    (answer,) = rig.run(replace(Adopt(KEY, prompt(40), tails((1,)), GREEDY), **change))
    assert isinstance(answer, Broken)
    rig.assert_empty()


def test_blocks_granted_from_the_cache_must_be_those_of_the_adopted_tokens() -> None:
    rig = Rig()
    generate(rig, prompt(40))
    rig.run(Grant(KEY, 40, (0,), 8, names(prompt(40))))
    (answer,) = rig.run(Adopt(KEY, prompt(40, seed=1), tails((1,)), GREEDY))
    assert isinstance(answer, Broken)
    assert "another name" in answer.message
    rig.assert_empty()


def test_a_choice_stopped_before_the_record_comes_is_not_adopted() -> None:
    rig = Rig()
    hand_over = landed(rig, tails((), ()))
    made = hand_over.prefill()
    hand_over.ship(made)
    rig.run(StopChoice(KEY, 0))
    results = rig.run(hand_over.adopt_command(made))
    assert {r.choice for r in only(results, NewTokens)} == {1}
    rig.assert_empty()


def test_a_hand_over_whose_choices_were_all_stopped_is_released_when_it_comes() -> None:
    rig = Rig()
    hand_over = landed(rig)
    made = hand_over.prefill()
    assert rig.run(StopChoice(KEY, 0), hand_over.adopt_command(made)) == [Released(KEY)]
    rig.assert_empty()
