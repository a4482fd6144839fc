"""Prompts that are scored: log probabilities of tokens that are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.api import NewTokens, Prefill, Rejected
from protocol.sampling import Sampling
from tests.support.engine_rig import GREEDY, KEY, Rig, generate, only, prompt, tails


def scoring(text: tuple[int, ...], logprobs: int = 2) -> Sampling:
    return Sampling(max_tokens=len(text) - 1, forced_ids=text[1:], logprobs=logprobs)


def score(rig: Rig, text: tuple[int, ...], *, tail: int = 0, hand_over: bool = True) -> list[NewTokens]:
    command = Prefill(KEY, text[:1], tails(text[1 : 1 + tail]), scoring(text), hand_over=hand_over)
    return only(rig.run(command), NewTokens)


@pytest.mark.parametrize("length", [2, 16, 17, 100])
@pytest.mark.parametrize("hand_over", [True, False])
def test_every_token_is_told_with_its_probability(length: int, hand_over: bool) -> None:
    rig, text = Rig(), prompt(length)
    made = score(rig, text, hand_over=hand_over)
    assert tuple(token for each in made for token in each.token_ids) == text[1:]
    assert [each.finish_reason for each in made][-1] == "length"
    assert not any(each.finish_reason for each in made[:-1])
    assert {each.num_cached_tokens for each in made} == {0}
    logprobs = [each for piece in made for each in piece.logprobs]
    assert len(logprobs) == length - 1
    assert all(len(each.top_ids) == 2 for each in logprobs)
    if hand_over:
        rig.submit()
    rig.run()
    rig.engine.check()


def test_they_are_those_that_sampling_tells() -> None:
    text = prompt(40)
    [made] = [generate(Rig(), text, replace(GREEDY, logprobs=2, max_tokens=12))]
    rig = Rig()
    rig.run(Prefill(("g", 0), text, tails(()), replace(GREEDY, logprobs=2, max_tokens=12)))
    told = [each for piece in only(rig.results, NewTokens) for each in piece.logprobs]
    scored = [each for piece in score(Rig(), (*text, *made[0])) for each in piece.logprobs]
    assert scored[-12:] == told


def test_long_ones_come_in_pieces_and_nobody_else_is_kept_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.rows.MAX_LOGITS", 512 * 10)
    alone = [each for piece in score(Rig(), prompt(100)) for each in piece.logprobs]
    rig = Rig()
    other = Prefill(("other", 0), prompt(30, 1), tails(()), GREEDY)
    made = only(rig.run(Prefill(KEY, prompt(100)[:1], tails(()), scoring(prompt(100))), other), NewTokens)
    pieces = [each for each in made if each.key == KEY]
    assert max(len(each.token_ids) for each in pieces) == 10
    assert [each for piece in pieces for each in piece.logprobs] == alone
    assert rig.tokens(("other", 0)) == generate(Rig(), prompt(30, 1))[0]


@pytest.mark.parametrize("tail", [1, 15, 50, 98])
def test_what_was_told_before_is_not_told_again(tail: int) -> None:
    text = prompt(100)
    whole = [each for piece in score(Rig(), text) for each in piece.logprobs]
    made = score(Rig(), text, tail=tail)
    assert made[0].first_index == tail
    assert [each for piece in made for each in piece.logprobs] == whole[tail:]


def test_nothing_is_read_from_the_cache_and_what_is_computed_is_there_for_others() -> None:
    rig, text = Rig(), prompt(64)
    generate(rig, text)
    made = score(rig, text)
    assert len([each for piece in made for each in piece.logprobs]) == 63
    rig = Rig()
    score(rig, text)
    rig.run()
    generate(rig, text)
    assert only(rig.results, NewTokens)[-1].num_cached_tokens == 48


def test_likelier_tokens_score_higher() -> None:
    text = prompt(40)
    [best] = generate(Rig(), text, replace(GREEDY, max_tokens=1))
    of_best = score(Rig(), (*text, *best))[-1].logprobs[-1]
    assert of_best.top_ids[0] == best[0]
    assert of_best.logprob == of_best.top_logprobs[0]
    other = score(Rig(), (*text, (best[0] + 1) % 512))[-1].logprobs[-1]
    assert other.logprob < of_best.logprob
    assert np.isfinite(other.logprob)


def test_what_does_not_fit_the_pool_never_will() -> None:
    text = prompt(200)
    [refused] = only(Rig(8).run(Prefill(KEY, text[:1], tails(()), scoring(text), hand_over=True)), Rejected)
    assert refused.code == "never_fits"


@pytest.mark.parametrize(
    "change",
    [{"tails": tails((9,))}, {"tails": tails((), ())}, {"sampling": replace(scoring(prompt(9)), max_tokens=5)}],
)
def test_forced_ids_that_cannot_be_are_refused(change: dict[str, object]) -> None:
    command = Prefill(KEY, prompt(9)[:1], tails(()), scoring(prompt(9)), hand_over=True)
    [refused] = only(Rig().run(replace(command, **change)), Rejected)  # type: ignore[arg-type]
    assert refused.code == "bad_request"


def test_who_gives_way_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [each for piece in score(Rig(), prompt(60, 2)) for each in piece.logprobs]
    monkeypatch.setattr("engine.rows.MAX_LOGITS", 512)
    rig = Rig(9)
    rig.submit(Prefill(("long", 0), prompt(31), tails(()), replace(GREEDY, max_tokens=90)))
    rig.step()
    rig.step()
    text = prompt(60, 2)
    rig.submit(Prefill(KEY, text[:1], tails(()), scoring(text)))
    rig.run()
    assert rig.load.num_preemptions
    assert rig.tokens(KEY) == list(text[1:])
    pieces = [each for each in only(rig.results, NewTokens) if each.key == KEY]
    assert [each for piece in pieces for each in piece.logprobs] == alone


@pytest.mark.parametrize("tail", [0, 40, 98])
def test_what_was_told_counts_once_towards_the_limits(tail: int) -> None:
    text = prompt(100)
    for rig in (Rig(max_len=110), Rig(7)):
        made = score(rig, text, tail=tail)
        assert sum(len(each.token_ids) for each in made) == 99 - tail


def test_a_prompt_longer_than_a_chunk_may_come_before_what_is_forced() -> None:
    text = prompt(60)
    command = Prefill(KEY, text[:20], tails(()), replace(scoring(text), forced_ids=text[20:], max_tokens=40))
    made = only(Rig(tokens=8).run(command), NewTokens)
    assert [token for each in made for token in each.token_ids] == list(text[20:])
