"""Stop and release in every state: nothing more is said, nothing stays behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.api import (
    Adopt,
    Broken,
    Grant,
    NewTokens,
    Release,
    Released,
    Reserve,
    Reserved,
    StopChoice,
)
from tests.support.engine_rig import (
    GREEDY,
    KEY,
    SEEDED,
    HandOver,
    Rig,
    generate,
    names,
    only,
    prefill,
    prompt,
    tails,
)


def test_a_stopped_choice_is_silent_and_the_last_one_releases_the_key() -> None:
    rig = Rig()
    rig.submit(replace(prefill(), tails=tails((), ())))
    for _ in range(4):
        rig.step()
    rig.submit(StopChoice(KEY, 1))
    assert {r.choice for r in only(rig.step(), NewTokens)} == {0}
    rig.submit(StopChoice(KEY, 0), StopChoice(KEY, 0))
    assert only(rig.step(), Released) == [Released(KEY)]
    rig.assert_empty()


def test_commands_about_unknown_keys_change_nothing_and_release_is_always_answered() -> None:
    rig = Rig()
    assert rig.run(StopChoice(KEY, 0)) == []
    assert rig.run(Release(KEY), Release(KEY)) == [Released(KEY), Released(KEY)]
    rig.assert_empty()


def test_an_adopt_that_nobody_granted_is_broken() -> None:
    (answer,) = Rig().run(Adopt(KEY, prompt(40), tails((1,)), GREEDY))
    assert isinstance(answer, Broken)


def test_a_second_prefill_of_a_live_key_changes_nothing() -> None:
    rig = Rig()
    rig.submit(prefill(), prefill())
    rig.step()
    rig.run(prefill())
    assert [r.first_index for r in only(rig.results, NewTokens)] == list(range(24))


Drive = Callable[[Rig], None]


def _prefilling(rig: Rig) -> None:
    rig.submit(replace(prefill(200, SEEDED), tails=tails((), (5, 6))))
    rig.step()
    assert rig.load.num_running == 1


def _waiting(rig: Rig) -> None:
    rig.submit(replace(prefill(200), key=("other", 0)), prefill(200))
    rig.step()
    rig.step()
    assert rig.load.num_waiting == 1


def _branching(rig: Rig) -> None:
    rig.submit(replace(prefill(60, SEEDED), tails=tails((), tuple(range(100)))))
    rig.step()
    rig.step()


def _decoding(rig: Rig) -> None:
    rig.submit(replace(prefill(sampling=SEEDED), tails=tails((), (), ())))
    for _ in range(6):
        rig.step()


def _reserved(rig: Rig) -> None:
    assert rig.run(Reserve(KEY, 40, (0,), 24)) == [Reserved(KEY)]


def _granted(rig: Rig) -> None:
    generate(rig, prompt(40))
    rig.run(Grant(KEY, 40, (0, 9), 24, names(prompt(40))))
    assert rig.load.held_blocks == 5


def _adopted(rig: Rig) -> None:
    hand_over = HandOver(Rig(), rig, prompt(40), GREEDY, name="k")
    hand_over.grant()
    made = hand_over.prefill()
    hand_over.ship(made)
    rig.submit(hand_over.adopt_command(made))
    rig.step()


def _handing_over(rig: Rig) -> None:
    rig.submit(replace(prefill(200, hand_over=True), tails=tails((), (5, 6))))
    rig.step()


def _handed_over(rig: Rig) -> None:
    rig.run(replace(prefill(200, hand_over=True), tails=tails((), (5, 6))))
    assert rig.load.held_blocks == 14


STATES = [
    _prefilling,
    _waiting,
    _branching,
    _decoding,
    _reserved,
    _granted,
    _adopted,
    _handing_over,
    _handed_over,
]


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("reach", STATES, ids=lambda f: f.__name__.strip("_"))
def test_release_in_every_state_leaves_nothing_behind(reach: Drive, caching: bool) -> None:
    rig = Rig(caching=caching)
    reach(rig)
    others = [Release(("other", 0))]
    results = rig.run(Release(KEY), *others, Release(KEY))
    assert only(results, Released).count(Released(KEY)) == 2
    assert only(results, NewTokens) == []
    rig.assert_empty()


@pytest.mark.parametrize("reach", STATES, ids=lambda f: f.__name__.strip("_"))
def test_stopping_every_choice_in_every_state_runs_nothing_more(reach: Drive) -> None:
    rig = Rig()
    reach(rig)
    rig.submit(*(StopChoice(KEY, choice) for choice in range(3)), Release(("other", 0)))
    assert not [r for r in only(rig.run(), NewTokens) if r.key == KEY]
    rig.run(Release(KEY))
    rig.assert_empty()
