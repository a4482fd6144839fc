"""Stop strings are found in the text, wherever its pieces begin and end."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.stop_strings import StopMatch, StopMatcher
from tests.support.http_twin import Api, text_of
from tests.support.scripted_dispatcher import EOS_ID, ids_of, says

ALPHABET = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)


def first_complete(text: str, stops: list[str]) -> StopMatch | None:
    """Find by trying each prefix, the longest stop string first."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return StopMatch(stop, end)
    return None


def longest_beginning(text: str, stops: list[str]) -> int:
    """Count the characters at the end of `text` that begin a stop string."""
    return max(
        length for stop in stops for length in range(len(stop)) if length <= len(text) and text.endswith(stop[:length])
    )


@given(text=ALPHABET, stops=STOPS, cuts=st.sets(st.integers(0, 30)))
def test_the_match_that_is_complete_first_wins_however_the_text_is_cut(
    text: str, stops: list[str], cuts: set[int]
) -> None:
    matcher = StopMatcher(tuple(stops))
    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    found = None
    for start, end in pairwise(borders):
        found = found or matcher.push(text[start:end])
    assert found == first_complete(text, stops)


@given(text=ALPHABET, stops=STOPS)
def test_what_may_become_a_stop_string_is_held(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(tuple(stops))
    if matcher.push(text) is None:
        assert matcher.num_held == longest_beginning(text, stops)


def test_matches_are_passed_over_until_armed() -> None:
    matcher = StopMatcher(("aa",))
    assert matcher.push("aa", armed=False) is None
    assert matcher.push("a") == StopMatch("aa", 3)


def test_nothing_is_held_without_stop_strings() -> None:
    matcher = StopMatcher(())
    assert matcher.push("abc") is None
    assert matcher.num_held == 0


TOKENS = [ids_of(char)[0] for char in "ABCDEFGHIJKL"]


@pytest.mark.parametrize("per_update", [1, 2, 5, 12])
def test_a_stop_string_across_tokens_is_never_seen(per_update: int) -> None:
    """Replays vllm #3574."""
    api = Api(says(TOKENS, per_update=per_update))
    events = api.chat_events(stop="DEFGHIJ")
    assert text_of(events) == "ABC"
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert events[-1]["choices"][0]["stop_reason"] == "DEFGHIJ"


@pytest.mark.parametrize("stream", [False, True])
def test_the_workers_are_told_where_the_choice_ended(stream: bool) -> None:
    api = Api(says(TOKENS))
    response = api.chat(stop="DEF", stream=stream, stream_options={"include_usage": True} if stream else None)
    assert response.status_code == 200
    assert api.dispatcher.streams[0].stopped == [(0, 6)]
    assert '"completion_tokens":6' in response.text.replace(": ", ":")


def test_tokens_after_the_stop_string_are_no_usage() -> None:
    api = Api(says(TOKENS, per_update=12))
    body = api.chat(stop=["K", "EF"]).json()
    assert body["choices"][0]["message"]["content"] == "ABCD"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 6
    assert api.dispatcher.streams[0].stopped == []  # its worker had ended it already


def test_the_stop_string_is_shown_on_request() -> None:
    api = Api(says(TOKENS))
    body = api.chat(stop="EF", include_stop_str_in_output=True).json()
    assert body["choices"][0]["message"]["content"] == "ABCDEF"


def test_held_text_is_shown_when_the_choice_ends_otherwise() -> None:
    events = Api(says(TOKENS[:5], end=EOS_ID)).chat_events(stop="DEFG")
    assert text_of(events) == "ABCDE"
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert events[-1]["choices"][0]["stop_reason"] is None


def test_a_stop_string_before_the_least_number_of_tokens_is_text() -> None:
    api = Api(says([*TOKENS[:3], *TOKENS[:6]]))
    body = api.chat(stop="BC", min_tokens=5).json()
    assert body["choices"][0]["message"]["content"] == "ABCA"
    assert body["usage"]["completion_tokens"] == 6


def test_a_stop_string_ends_its_choice_alone() -> None:
    steps = [*says(TOKENS, choice=0)[:6], *says(TOKENS[6:], choice=1)]
    api = Api(steps)
    body = api.chat(stop="DEF", n=2).json()
    assert [each["message"]["content"] for each in body["choices"]] == ["ABC", "GHIJKL"]
    assert [each["finish_reason"] for each in body["choices"]] == ["stop", "length"]
    assert api.dispatcher.streams[0].cancelled == []


def test_a_stop_token_of_the_request_is_named_and_isnt_text() -> None:
    body = Api(says("abc", end=TOKENS[0])).chat(stop_token_ids=[TOKENS[0]]).json()
    assert body["choices"][0]["message"]["content"] == "abc"
    assert body["choices"][0]["stop_reason"] == TOKENS[0]


def test_a_stop_token_is_shown_on_request() -> None:
    api = Api(says("abc", end=TOKENS[0]))
    body = api.chat(stop_token_ids=[TOKENS[0]], include_stop_str_in_output=True).json()
    assert body["choices"][0]["message"]["content"] == "abcA"
