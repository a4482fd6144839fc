"""Beside prefill a decode step takes all cores where that costs no more core-seconds than its share: it tries both."""

from engine.core_share import PERIOD, TRIES, CoreShare


def decide(share: CoreShare, on_share: int, on_all: int, num_steps: int = PERIOD) -> list[bool]:
    """Steps that take so long on 1 of 2 cores, or on both; which of them took all."""
    taken = []
    for _ in range(num_steps):
        taken.append(share.takes_all)
        share.learn(on_all if taken[-1] else on_share, 2 if taken[-1] else 1)
    return taken


def test_all_cores_are_kept_where_each_has_a_rate_of_its_own() -> None:
    taken = decide(CoreShare(), 60, 31)
    assert taken == [False] * TRIES + [True] * (PERIOD - TRIES)


def test_the_share_is_kept_where_a_second_core_brings_little() -> None:
    taken = decide(CoreShare(), 60, 48)
    assert taken == [False] * TRIES + [True] * TRIES + [False] * (PERIOD - 2 * TRIES)


def test_both_are_tried_again_after_a_while() -> None:
    share = CoreShare()
    decide(share, 60, 31)
    again = decide(share, 60, 48)
    assert again[:TRIES] == [False] * TRIES
    assert not any(again[2 * TRIES :])


def test_one_step_that_was_held_up_decides_nothing() -> None:
    share = CoreShare()
    for i in range(2 * TRIES):
        share.learn(900 if i == TRIES else 31 if share.takes_all else 60, 2 if share.takes_all else 1)
    assert share.takes_all
