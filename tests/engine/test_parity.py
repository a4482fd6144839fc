"""The same tokens, whatever else happens: alone, in a batch, in chunks, from the cache, handed over, preempted."""

from dataclasses import replace

import pytest

from engine.api import ChoiceTail, Granted, NewTokens, Prefill, Release
from protocol.sampling import Sampling
from tests.support.engine_rig import (
    GREEDY,
    SEEDED,
    HandOver,
    Rig,
    generate,
    only,
    prompt,
    tails,
    tokens_of,
)

LENGTHS = (1, 15, 16, 17, 32, 33, 77, 160)
BOTH = pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])


@BOTH
def test_requests_in_one_batch_get_the_tokens_they_get_alone(sampling: Sampling) -> None:
    alone = [generate(Rig(), prompt(n, n), sampling)[0] for n in LENGTHS]
    rig = Rig(128)
    together = [Prefill((f"r{n}", 0), prompt(n, n), tails(()), sampling) for n in LENGTHS]
    results = rig.run(*together)
    assert [tokens_of(results, (f"r{n}", 0)) for n in LENGTHS] == alone
    assert all(len(set(ids)) > 5 for ids in alone)
    rig.assert_empty()


@BOTH
@pytest.mark.parametrize("chunk", [1, 7, 16, 64, 512])
def test_chunk_sizes_do_not_change_tokens(sampling: Sampling, chunk: int) -> None:
    expected = generate(Rig(tokens=1000), prompt(150), sampling)
    assert generate(Rig(tokens=chunk), prompt(150), sampling) == expected


@BOTH
def test_a_warm_cache_skips_compute_and_changes_nothing(sampling: Sampling) -> None:
    """Replays vllm #40896."""
    rig = Rig()
    cold = generate(rig, prompt(77), sampling, name="cold")
    before = rig.load
    assert generate(rig, prompt(77), sampling, name="warm") == cold
    after = rig.load
    assert after.prompt_tokens_cached - before.prompt_tokens_cached == 64
    assert after.prompt_tokens_computed - before.prompt_tokens_computed == 13
    reported = {r.key[0]: r.num_cached_tokens for r in only(rig.results, NewTokens)}
    assert reported == {"cold": 0, "warm": 64}


def test_a_prompt_that_is_cached_to_its_last_block_still_computes_its_last_token() -> None:
    rig = Rig()
    cold = generate(rig, prompt(32), name="cold")
    assert generate(rig, prompt(32), name="warm") == cold
    assert only(rig.results, NewTokens)[-1].num_cached_tokens == 16


def test_another_salt_shares_no_blocks() -> None:
    rig = Rig()
    generate(rig, prompt(64), name="plain")
    rig.run(Prefill(("salted", 0), prompt(64), tails(()), GREEDY, cache_salt="s"))
    assert rig.load.prompt_tokens_cached == 0


def test_with_caching_off_nothing_is_kept() -> None:
    rig = Rig(caching=False)
    first = generate(rig, prompt(64), name="a")
    assert generate(rig, prompt(64), name="b") == first
    assert (rig.load.prompt_tokens_cached, rig.load.cached_blocks) == (0, 0)


@BOTH
@pytest.mark.parametrize("made", [1, 15, 16, 17, 20])
def test_prefilling_prompt_and_produced_tokens_again_goes_on_the_same(sampling: Sampling, made: int) -> None:
    (whole,) = generate(Rig(), prompt(45), sampling)
    for rig in (Rig(), Rig(caching=False)):
        generate(rig, prompt(45), sampling, name="before")
        rest = generate(rig, prompt(45), sampling, choices=tails(whole[:made]), name="again")
        assert rest == [whole[made:]]


def test_decoded_blocks_are_in_the_cache_for_the_next_turn() -> None:
    rig = Rig()
    (made,) = generate(rig, prompt(45), replace(GREEDY, max_tokens=40))
    generate(rig, [*prompt(45), *made, 5, 6, 7], name="next")
    assert only(rig.results, NewTokens)[-1].num_cached_tokens == 80


@BOTH
@pytest.mark.parametrize("length", [16, 40])
def test_three_choices_compute_the_prompt_once_and_equal_single_choices(sampling: Sampling, length: int) -> None:
    rig = Rig()
    three = generate(rig, prompt(length), sampling, choices=tails((), (), ()))
    assert rig.load.prompt_tokens_computed == length
    singles = [generate(Rig(), prompt(length), sampling, choices=(ChoiceTail(number),))[0] for number in range(3)]
    assert three == singles
    rig.assert_empty()


@BOTH
@pytest.mark.parametrize("length", [16, 40])
def test_choices_with_tails_go_on_where_they_were(sampling: Sampling, length: int) -> None:
    whole = generate(Rig(), prompt(length), sampling, choices=tails((), (), ()))
    cuts = (0, 3, 21)
    given = tails(*(ids[:cut] for ids, cut in zip(whole, cuts, strict=True)))
    for rig in (Rig(), Rig(caching=False)):
        assert generate(rig, prompt(length), sampling, choices=given, name="a") == [
            ids[cut:] for ids, cut in zip(whole, cuts, strict=True)
        ]
        again = generate(rig, prompt(length), sampling, choices=given, name="b")  # warm, or not
        assert again == [ids[cut:] for ids, cut in zip(whole, cuts, strict=True)]
        rig.assert_empty()


@BOTH
@pytest.mark.parametrize("length", LENGTHS)
def test_a_handed_over_request_gets_the_same_tokens(sampling: Sampling, length: int) -> None:
    expected = generate(Rig(), prompt(length), sampling)
    p, d = Rig(tokens=32), Rig()
    hand_over = HandOver(p, d, prompt(length), sampling)
    assert hand_over.whole() == expected
    assert hand_over.num_copied == -(-length // 16)
    assert (p.load.prompt_tokens_computed, d.load.prompt_tokens_computed) == (length, 0)
    p.assert_empty()
    d.assert_empty()


@BOTH
def test_a_second_hand_over_ships_only_what_is_missing(sampling: Sampling) -> None:
    expected = generate(Rig(), prompt(77), sampling)
    p, d = Rig(), Rig()
    assert HandOver(p, d, prompt(77), sampling, name="first").whole() == expected
    second = HandOver(p, d, prompt(77), sampling, name="second")
    assert second.whole() == expected
    assert second.num_copied == 1
    p.assert_empty()
    d.assert_empty()


@BOTH
@pytest.mark.parametrize("length", [16, 40])
@pytest.mark.parametrize("cuts", [(0, 0, 0), (0, 3, 21), (5, 5, 18)])
def test_three_choices_are_handed_over_with_their_tails(sampling: Sampling, length: int, cuts: tuple[int, ...]) -> None:
    whole = generate(Rig(), prompt(length), sampling, choices=tails((), (), ()))
    given = tails(*(ids[:cut] for ids, cut in zip(whole, cuts, strict=True)))
    p, d = Rig(tokens=32), Rig()
    for name in ("cold", "warm"):
        hand_over = HandOver(p, d, prompt(length), sampling, given, name)
        assert hand_over.whole() == [ids[cut:] for ids, cut in zip(whole, cuts, strict=True)]
    p.assert_empty()
    d.assert_empty()


def test_shared_blocks_of_three_choices_travel_once() -> None:
    p, d = Rig(), Rig()
    hand_over = HandOver(p, d, prompt(77), SEEDED, tails((), (), ()))
    hand_over.whole()
    assert hand_over.num_copied == 5
    assert p.load.prompt_tokens_computed == 77


def test_a_single_choice_with_a_tail_is_handed_over_as_one_trunk() -> None:
    (whole,) = generate(Rig(), prompt(40), SEEDED)
    p, d = Rig(), Rig()
    hand_over = HandOver(p, d, prompt(40), SEEDED, tails(whole[:10]))
    assert hand_over.whole() == [whole[10:]]
    assert hand_over.num_copied == 4


def test_a_choice_that_ends_at_its_first_token_leaves_the_others_alone() -> None:
    whole = generate(Rig(), prompt(40), SEEDED, choices=tails((), ()))
    given = tails(whole[0][:7], whole[1][:7])
    ends = replace(SEEDED, stop_token_ids=(whole[0][7],))
    assert whole[0][7] not in whole[1]
    p, d = Rig(), Rig()
    made = HandOver(p, d, prompt(40), ends, given).whole()
    assert made == [whole[0][7:8], whole[1][7:]]
    p.assert_empty()
    d.assert_empty()


@BOTH
def test_preempted_requests_get_the_same_tokens(sampling: Sampling) -> None:
    """Replays vllm #16832."""
    long = replace(sampling, max_tokens=60)
    expected = [generate(Rig(), prompt(40, n), long)[0] for n in range(4)]
    for caching in (True, False):
        rig = Rig(18, caching=caching)
        requests = [Prefill((f"r{n}", 0), prompt(40, n), tails(()), long) for n in range(4)]
        results = rig.run(*requests)
        assert [tokens_of(results, (f"r{n}", 0)) for n in range(4)] == expected
        assert rig.load.num_preemptions > 0
        assert rig.load.prompt_tokens_computed + rig.load.prompt_tokens_cached > 4 * 40
        rig.assert_empty()


def test_a_tail_that_is_in_the_cache_is_not_computed_again() -> None:
    whole = generate(Rig(), prompt(40), SEEDED, choices=tails((), ()))
    given = tails(whole[0][:21], whole[1][:21])
    rig = Rig()
    generate(rig, prompt(40), SEEDED, choices=given, name="cold")
    before = rig.load.prompt_tokens_computed
    generate(rig, prompt(40), SEEDED, choices=given, name="warm")
    assert rig.load.prompt_tokens_computed - before == (40 - 32) + 2 * (61 - 48)


def test_preempted_choices_of_one_request_get_the_same_tokens() -> None:
    long = replace(SEEDED, max_tokens=60)
    expected = generate(Rig(), prompt(40), long, choices=tails((), (), ()))
    rig = Rig(9)
    assert generate(rig, prompt(40), long, choices=tails((), (), ())) == expected
    assert rig.load.num_preemptions > 0
    rig.assert_empty()


def test_adopted_choices_that_are_preempted_get_the_same_tokens() -> None:
    long = replace(SEEDED, max_tokens=100)
    expected = [generate(Rig(), prompt(40, n), long)[0] for n in range(3)]
    p, d = Rig(), Rig(15)
    hands = [HandOver(p, d, prompt(40, n), long, name=f"h{n}") for n in range(3)]
    made = []
    for hand in hands:
        assert isinstance(hand.grant(expected_tokens=1), Granted)
        results = hand.prefill()
        hand.ship(results)
        made.append((hand, results, hand.adopt_command(results)))
    d.run(*(adopt for _, _, adopt in made))
    for n, (hand, results, _) in enumerate(made):
        assert tokens_of(results, hand.key) + d.tokens(hand.key) == expected[n]
    assert d.load.num_preemptions > 0
    d.assert_empty()
    p.run(*(Release(hand.key) for hand in hands))
    p.assert_empty()
