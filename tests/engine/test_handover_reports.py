"""What a prefill engine reports of a hand-over, and what it keeps for it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from engine.api import (
    Computed,
    NewTokens,
    Prefill,
    Release,
    Released,
    StopChoice,
)
from tests.support.engine_rig import (
    GREEDY,
    KEY,
    SEEDED,
    Rig,
    generate,
    only,
    prefill,
    prompt,
    tails,
)


def test_computed_reports_grow_by_whole_blocks_and_end_with_the_whole_trunk() -> None:
    rig = Rig(tokens=40)
    results = rig.run(prefill(100, hand_over=True))
    reports = only(results, Computed)
    assert [(r.num_tokens, r.last) for r in reports] == [(32, False), (80, False), (100, True)]
    for earlier, later in pairwise(reports):
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


def test_a_choice_stopped_while_its_prompt_is_computed_gives_its_branch_back_at_once() -> None:
    rig = Rig()
    rig.submit(Prefill(KEY, prompt(200), tails((), (5,) * 20), SEEDED, hand_over=True))
    rig.step()
    held = rig.load.held_blocks
    rig.submit(StopChoice(KEY, 1))
    assert rig.load.held_blocks == held - 2
