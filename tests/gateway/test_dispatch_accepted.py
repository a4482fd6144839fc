"""The accepted list: each token once, in order, however the events come."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.accepted import MAX_AHEAD, AcceptedList, MalformedEventError
from gateway.generation import Update
from protocol.messages import TokenEvent
from protocol.sampling import TokenLogprob

MAX_TOKENS = 200


def event(first: int, ids: list[int], *, end: bool = False, logprobs: bool = False) -> TokenEvent:
    probs = tuple(TokenLogprob(-float(i)) for i in ids) if logprobs else ()
    num = first + len(ids) if end else -1
    return TokenEvent("r", 1, 0, first, tuple(ids), probs, "stop" if end else "", 9, num, 0)


@given(st.integers(1, 30), st.lists(st.tuples(st.integers(0, 29), st.integers(1, 9)), max_size=60), st.randoms())
def test_any_mix_of_overlapping_events_gives_the_output_once(
    length: int, spans: list[tuple[int, int]], dice: random.Random
) -> None:
    whole = [(i, min(i + 1, length)) for i in range(length)]
    cuts = [(a, min(a + n, length)) for a, n in spans if a < length] + whole
    dice.shuffle(cuts)
    accepted = AcceptedList(0, MAX_TOKENS)
    updates: list[Update] = []
    for start, stop in cuts:
        ids = list(range(start, stop))
        update = accepted.offer(event(start, ids, end=stop == length, logprobs=True))
        updates += [update] if update is not None else []
    assert [i for u in updates for i in u.token_ids] == list(range(length))
    assert [p.logprob for u in updates for p in u.logprobs] == [-float(i) for i in range(length)]
    assert all(u.first_index == u.token_ids[0] for u in updates)
    assert [u.finish_reason for u in updates if u.finish_reason] == ["stop"]
    assert updates[-1].stop_token == 9
    assert accepted.ack_index == length + 1
    assert not accepted.has_gap


def test_the_end_may_come_without_tokens() -> None:
    accepted = AcceptedList(0, MAX_TOKENS)
    accepted.offer(event(0, [1, 2]))
    assert accepted.ack_index == 2
    update = accepted.offer(event(2, [], end=True))
    assert update is not None
    assert (update.token_ids, update.finish_reason) == ((), "stop")
    assert accepted.offer(event(2, [], end=True)) is None


def test_an_end_that_overtakes_waits_for_the_tokens_before_it() -> None:
    accepted = AcceptedList(0, MAX_TOKENS)
    assert accepted.offer(event(2, [3], end=True)) is None
    assert accepted.has_gap
    update = accepted.offer(event(0, [1, 2]))
    assert update is not None
    assert (update.token_ids, update.finish_reason) == ((1, 2, 3), "stop")


def test_what_waits_is_bounded_and_forgotten_with_its_attempt() -> None:
    accepted = AcceptedList(0, MAX_TOKENS)
    for index in range(MAX_AHEAD + 10):
        accepted.offer(event(index + 1, [index]))
    assert len(accepted._ahead) == MAX_AHEAD
    accepted.new_attempt()
    assert not accepted.has_gap


@pytest.mark.parametrize(
    "broken",
    [
        event(-1, [1]),
        event(MAX_TOKENS, [1]),
        TokenEvent("r", 1, 0, 0, (1, 2), (TokenLogprob(-1.0),), "", -1, -1, 0),
        TokenEvent("r", 1, 0, 0, (1, 2), (), "stop", -1, 3, 0),
    ],
)
def test_an_event_that_cannot_be_is_an_error(broken: TokenEvent) -> None:
    with pytest.raises(MalformedEventError):
        AcceptedList(0, MAX_TOKENS).offer(broken)


def test_tokens_past_a_stop_are_wasted_and_not_output() -> None:
    accepted = AcceptedList(0, MAX_TOKENS)
    accepted.offer(event(0, [1, 2, 3, 4]))
    accepted.stop(2)
    assert accepted.over
    assert (accepted.num_output, accepted.num_wasted) == (2, 2)
    accepted.waste(event(4, [5, 6]))
    accepted.waste(event(4, [5, 6]))
    assert (accepted.num_output, accepted.num_wasted) == (2, 4)
