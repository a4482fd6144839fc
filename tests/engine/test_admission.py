"""What can't be served is said at once; what doesn't fit now is refused before it can thrash."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.api import (
    ChoiceTail,
    Grant,
    Granted,
    Prefill,
    Rejected,
    Release,
    Reserve,
    Reserved,
)
from tests.support.engine_rig import (
    GREEDY,
    KEY,
    HandOver,
    Rig,
    generate,
    names,
    only,
    prefill,
    prompt,
    tails,
    tokens_of,
)


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
    """Replays vllm #57104."""
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
    rig = Rig(14)
    rig.run(Grant(("a", 0), 128, (0,), 1, ()))
    rig.submit(prefill(80))
    rig.step()
    (answer,) = rig.run(Reserve(("c", 0), 16, (0,), 1))
    assert isinstance(answer, Rejected)
