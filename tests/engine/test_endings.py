"""When a choice ends, why, and what is free afterwards."""

from __future__ import annotations

from dataclasses import replace

from engine.api import (
    NewTokens,
    Rejected,
    Released,
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
    """Replays openai-python #434."""
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


def test_when_one_choice_outgrows_the_pool_its_siblings_end_with_it() -> None:
    rig = Rig(4)
    long = replace(SEEDED, max_tokens=500)
    results = rig.run(replace(prefill(20, long), tails=tails((), ())))
    assert [r.code for r in only(results, Rejected)] == ["never_fits"]
    rig.assert_empty()
