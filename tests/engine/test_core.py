"""Commands, answers and limits of the engine: reports, admission, stops, ends and failures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.api import (
    Adopt,
    Broken,
    ChoiceTail,
    Computed,
    Grant,
    Granted,
    NewTokens,
    Prefill,
    Rejected,
    Release,
    Released,
    Reserve,
    Reserved,
    StopChoice,
)
from engine.core import Engine, EngineSettings
from engine.pool_memory import PoolMemory
from engine.toy_model import ToyModel
from protocol.sampling import Sampling
from tests.support.engine_rig import (
    GREEDY,
    MODEL,
    SEEDED,
    HandOver,
    Rig,
    generate,
    names,
    only,
    prompt,
    tails,
    tokens_of,
)

KEY = ("k", 0)


def prefill(length: int = 40, sampling: Sampling = GREEDY, **more: Any) -> Prefill:
    return Prefill(KEY, prompt(length), tails(()), sampling, **more)


# -- ends ---------------------------------------------------------------------------------------------


def test_max_tokens_ends_a_choice_with_length_and_releases_the_key() -> None:
    rig = Rig()
    results = rig.run(prefill(sampling=replace(GREEDY, max_tokens=3)))
    assert [r.finish_reason for r in only(results, NewTokens)] == ["", "", "length"]
    assert results[-1] == Released(KEY)
    rig.assert_empty()


def test_one_token_is_one_token() -> None:
    results = Rig().run(prefill(sampling=replace(GREEDY, max_tokens=1)))
    assert [type(r) for r in results] == [NewTokens, Released]


def test_tail_tokens_count_towards_max_tokens() -> None:
    (whole,) = generate(Rig(), prompt(40))
    command = replace(prefill(sampling=replace(GREEDY, max_tokens=12)), tails=tails(whole[:10]))
    made = only(Rig().run(command), NewTokens)
    assert [r.first_index for r in made] == [10, 11]
    assert made[-1].finish_reason == "length"


def test_an_end_token_ends_with_stop_and_is_named() -> None:
    (whole,) = generate(Rig(), prompt(40))
    ends = replace(GREEDY, eos_ids=(whole[5],))
    last = only(Rig().run(prefill(sampling=ends)), NewTokens)[-1]
    assert (last.first_index, last.finish_reason, last.stop_token) == (5, "stop", whole[5])
    ignored = generate(Rig(), prompt(40), replace(ends, ignore_eos=True))
    assert ignored == [whole]
    unstopped = generate(Rig(), prompt(40), replace(ends, min_tokens=10))
    assert len(unstopped[0]) >= 10
    assert unstopped[0][:5] == whole[:5]


def test_the_context_limit_ends_a_choice_with_length() -> None:
    rig = Rig(max_len=50)
    made = only(rig.run(prefill(40)), NewTokens)
    assert len(made) == 10
    assert made[-1].finish_reason == "length"


def test_one_choice_that_ends_frees_its_blocks_while_others_go_on() -> None:
    whole = generate(Rig(), prompt(40), SEEDED, choices=tails((), ()))
    ends = replace(SEEDED, stop_token_ids=(whole[0][2],))
    rig = Rig()
    rig.submit(replace(prefill(sampling=ends), tails=tails((), ())))
    while not any(r.finish_reason for r in only(rig.step(), NewTokens)):
        pass
    assert rig.load.held_blocks == 3
    rig.run()
    assert rig.tokens(KEY, 1) == whole[1]
    rig.assert_empty()


# -- stop and release ---------------------------------------------------------------------------------


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


# -- what can't be served -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        replace(prefill(), prompt_ids=()),
        replace(prefill(), tails=()),
        replace(prefill(), tails=(ChoiceTail(1), ChoiceTail(1))),
        replace(prefill(), prompt_ids=(1, 512)),
        replace(prefill(), tails=tails((-1,))),
        replace(prefill(), tails=tails((1,) * 24)),
        replace(prefill(), sampling=replace(GREEDY, logit_bias=((512, 1.0),))),
        Reserve(KEY, 0, (0,), 5),
        Reserve(KEY, 5, (), 5),
    ],
)
def test_a_malformed_command_is_rejected_before_anything_is_held(command: Prefill | Reserve) -> None:
    rig = Rig()
    (answer,) = rig.run(command)
    assert isinstance(answer, Rejected)
    assert answer.code == "bad_request"
    rig.assert_empty()


@pytest.mark.parametrize("command", [prefill(64), Reserve(KEY, 60, (4,), 8)])
def test_a_context_without_room_for_an_answer_is_too_long(command: Prefill | Reserve) -> None:
    (answer,) = Rig(max_len=64).run(command)
    assert isinstance(answer, Rejected)
    assert answer.code == "context_length_exceeded"


@pytest.mark.parametrize(
    "command",
    [
        prefill(64),
        Reserve(KEY, 64, (0,), 8),
        Grant(KEY, 48, (0, 0), 8, ()),
        prefill(65, hand_over=True),
    ],
)
def test_what_is_larger_than_the_whole_pool_never_fits(command: Prefill | Reserve | Grant) -> None:
    rig = Rig(4)
    (answer,) = rig.run(command)
    assert isinstance(answer, Rejected)
    assert answer.code == "never_fits"
    rig.assert_empty()


def test_an_answer_that_outgrows_the_pool_is_ended_and_the_others_go_on() -> None:
    rig = Rig(5)
    long = replace(GREEDY, max_tokens=500)
    rig.submit(Prefill(("big", 0), prompt(40), tails(()), long), prefill(20))
    results = rig.run()
    assert [r.code for r in only(results, Rejected)] == ["never_fits"]
    assert len(tokens_of(results, ("big", 0))) == 41
    assert len(tokens_of(results, KEY)) == 24
    rig.assert_empty()


# -- admission ----------------------------------------------------------------------------------------


def test_reservations_count_prompt_expected_output_and_one_block_a_choice() -> None:
    rig = Rig(30)
    assert rig.run(Reserve(KEY, 40, (0, 0), 64)) == [Reserved(KEY)]
    assert rig.load.reserved_blocks == 3 + 2 * (4 + 1)
    assert rig.load.held_blocks == 0
    rig.run(Reserve(("b", 0), 40, (0, 0), 64))
    (answer,) = rig.run(Reserve(("c", 0), 40, (0, 0), 64))
    assert isinstance(answer, Rejected)
    assert answer.code == "no_space"
    assert rig.run(Reserve(KEY, 40, (0, 0), 64)) == [Reserved(KEY)]
    rig.run(Release(KEY))
    assert rig.run(Reserve(("c", 0), 40, (0, 0), 64)) == [Reserved(("c", 0))]


def test_an_endless_max_tokens_counts_as_the_expected_length() -> None:
    rig = Rig(96)
    rig.run(Reserve(KEY, 40, (0,), 100_000))
    assert rig.load.reserved_blocks == 3 + 16 + 1


def test_an_empty_engine_lets_in_whoever_can_run_at_all() -> None:
    rig = Rig(8)
    assert rig.run(Reserve(KEY, 100, (0,), 500)) == [Reserved(KEY)]
    (answer,) = rig.run(Reserve(("b", 0), 5, (0,), 1))
    assert isinstance(answer, Rejected)


def test_a_grant_ties_what_its_reservation_counted_and_answers_the_same_again() -> None:
    rig = Rig(30)
    rig.run(Reserve(KEY, 40, (0, 9), 64))
    grant = Grant(KEY, 40, (0, 9), 64, names(prompt(40)))
    first, again = rig.run(grant, grant)
    assert isinstance(first, Granted)
    assert again == first
    assert (len(first.trunk), [len(b) for b in first.branches]) == (3, [0, 2])
    assert rig.load.held_blocks == 5
    assert rig.load.reserved_blocks == 5 + 5


def test_a_grant_holds_what_the_cache_has_even_the_last_full_block() -> None:
    rig = Rig()
    generate(rig, prompt(48))
    (answer,) = rig.run(Grant(KEY, 48, (0,), 8, names(prompt(48))))
    assert isinstance(answer, Granted)
    assert answer.num_cached_tokens == 48
    rig.run(Release(KEY))
    rig.assert_empty()


def test_one_free_block_per_live_choice_is_never_granted_away() -> None:
    rig = Rig(12)
    long = replace(GREEDY, max_tokens=80)
    grower = HandOver(Rig(), rig, prompt(40), long, name="grower")
    grower.grant(expected_tokens=1)
    rig.run(Reserve(KEY, 48, (0,), 1))
    made = grower.prefill()
    grower.ship(made)
    rig.submit(grower.adopt_command(made))
    while rig.load.held_blocks < 8:
        rig.step()
    # Four are free: one for the grower, one for the newcomer, so two may be tied and three may not.
    answer = only(rig.run(Grant(KEY, 48, (0,), 1, ())), Rejected)[0]
    assert answer.code == "no_space"
    rig.run(Release(KEY))
    rig.assert_empty()


def test_a_waiting_prompt_leaves_the_blocks_of_landing_choices_alone() -> None:
    rig = Rig(12)
    for name in ("a", "b"):
        rig.run(Grant((name, 0), 64, (0,), 1, ()))
    rig.submit(prefill(32))  # needs 2 and 1 spare; 4 are free, 2 of them spoken for
    rig.step()
    assert (rig.load.num_waiting, rig.engine.has_work()) == (1, False)
    rig.run(Release(("a", 0)))
    assert len(rig.tokens(KEY)) == 24


def test_new_reservations_wait_behind_a_waiting_prompt() -> None:
    rig = Rig(12)
    rig.run(Grant(("a", 0), 128, (0,), 1, ()))
    rig.submit(prefill(64))
    rig.step()
    (answer,) = rig.run(Reserve(("c", 0), 16, (0,), 1))
    assert isinstance(answer, Rejected)


# -- adoption -----------------------------------------------------------------------------------------


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


# -- hand-over reports --------------------------------------------------------------------------------


def test_computed_reports_grow_by_whole_blocks_and_end_with_the_whole_trunk() -> None:
    rig = Rig(tokens=40)
    results = rig.run(prefill(100, hand_over=True))
    reports = only(results, Computed)
    assert [(r.num_tokens, r.last) for r in reports] == [(32, False), (80, False), (100, True)]
    for earlier, later in zip(reports, reports[1:], strict=False):
        assert later.blocks[: len(earlier.blocks)] == earlier.blocks
    assert [type(r) for r in results[-2:]] == [Computed, NewTokens]
    assert rig.load.held_blocks == 7


def test_cached_tokens_are_reported_before_anything_is_computed() -> None:
    rig = Rig()
    generate(rig, prompt(100))
    steps = rig.load.num_steps
    rig.submit(prefill(100, hand_over=True))
    (early,) = rig.step()
    assert early == Computed(KEY, -1, 0, 96, only([early], Computed)[0].blocks, last=False)
    assert rig.load.num_steps == steps
    assert [type(r) for r in rig.step()] == [Computed, NewTokens]


def test_branches_are_reported_from_the_first_block_they_do_not_share() -> None:
    whole = generate(Rig(), prompt(40), SEEDED, choices=tails((), ()))
    rig = Rig()
    command = Prefill(KEY, prompt(40), tails((), whole[1][:20]), SEEDED, hand_over=True)
    reports = only(rig.run(command), Computed)
    assert [(r.choice, r.first_token, r.num_tokens, r.last) for r in reports] == [
        (-1, 0, 40, True),
        (1, 32, 60, True),
    ]
    assert len(reports[1].blocks) == 2


def test_a_branch_that_ends_at_its_first_token_keeps_no_blocks() -> None:
    whole = generate(Rig(), prompt(40), SEEDED, choices=tails((), ()))
    ends = replace(SEEDED, stop_token_ids=(whole[1][9],))
    rig = Rig()
    results = rig.run(Prefill(KEY, prompt(40), tails((), whole[1][:9]), ends, hand_over=True))
    finishes = {r.choice: r.finish_reason for r in only(results, NewTokens)}
    assert finishes == {0: "", 1: "stop"}
    assert rig.load.held_blocks == 3


def test_a_hand_over_with_nothing_left_still_waits_for_its_release() -> None:
    rig = Rig()
    results = rig.run(prefill(sampling=replace(GREEDY, max_tokens=1), hand_over=True))
    assert only(results, NewTokens)[0].finish_reason == "length"
    assert only(results, Released) == []
    assert rig.run(Release(KEY)) == [Released(KEY)]
    rig.assert_empty()


def test_hand_overs_wait_for_room_instead_of_taking_it_from_each_other() -> None:
    rig = Rig(10)
    first, second = (Prefill((n, 0), prompt(100, len(n)), tails(()), GREEDY, "", True) for n in ("a", "bb"))
    results = rig.run(first, second)
    assert {r.key for r in only(results, NewTokens)} == {("a", 0)}
    assert rig.load.num_waiting == 1
    results = rig.run(Release(("a", 0)))
    assert {r.key for r in only(results, NewTokens)} == {("bb", 0)}
    assert rig.load.num_preemptions == 0


# -- failures -----------------------------------------------------------------------------------------


class Faulty(ToyModel):
    """Fails while ``bad`` is in a batch."""

    bad = 500

    def forward(self, batch: Any, cache: Any, on_layer: Any) -> torch.Tensor:
        if self.bad in batch.token_ids.tolist():
            raise RuntimeError("the device said no")
        return super().forward(batch, cache, on_layer)


def test_a_failing_step_breaks_its_keys_and_the_engine_lives_on() -> None:
    rig = Rig(model=Faulty())
    (answer,) = rig.run(Prefill(KEY, (1, 500), tails(()), GREEDY))
    assert answer == Broken(KEY, "RuntimeError: the device said no")
    rig.assert_empty()
    assert len(generate(rig, (1, 2, 3), replace(GREEDY, max_tokens=4))[0]) == 4


def test_three_failing_steps_in_a_row_are_raised() -> None:
    rig = Rig(model=Faulty())
    for _ in range(2):
        rig.run(Prefill(KEY, (1, 500), tails(()), GREEDY))
    with pytest.raises(RuntimeError, match="the device said no"):
        rig.run(Prefill(KEY, (1, 500), tails(()), GREEDY))


def test_a_pool_of_another_layout_is_refused() -> None:
    memory = PoolMemory(ToyModel(dtype="bfloat16").layout, 4)
    with pytest.raises(ValueError, match="layout"):
        Engine(MODEL, memory, EngineSettings(4, 32, 64))


def test_limits_with_which_nothing_would_run_are_refused() -> None:
    with pytest.raises(ValueError, match="max_num_seqs"):
        EngineSettings(0, 32, 64)


def test_every_layer_counts_as_progress() -> None:
    rig = Rig()
    generate(rig, prompt(40), replace(GREEDY, max_tokens=3))
    assert rig.memory.progress == 2 * 3
