"""An answer is read from its events: tokens, usage, and what went wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.answer import Answer, read_answer
from bench.recording import Recording

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}


def text(piece: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": piece, "finish_reason": finish}]}


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def answer_of(*found: dict[str, Any] | bytes, end_s: float = 20.0, done: bool = True) -> Answer:
    """Events at 11, 12, ... of a request sent at 10."""
    recording = Recording(3, sent_s=10.0, end_s=end_s)
    for number, each in enumerate(found):
        data = each if isinstance(each, bytes) else json.dumps(each).encode()
        recording.add(11.0 + number, b"data: " + data + b"\n\n")
    if done:
        recording.add(19.0, b"data: [DONE]\n\n")
    return read_answer(recording)


def test_each_event_with_text_is_an_arrival_and_the_last_one_without_is_none() -> None:
    answer = answer_of(text("a"), text("b"), text("c"), text("", "length"), {"choices": [], "usage": USAGE})
    assert answer.times == (11.0, 12.0, 13.0)
    assert (answer.ttft_s, answer.tpot_s, answer.gaps_s()) == (1.0, 1.0, [1.0, 1.0])
    assert (answer.prompt_tokens, answer.cached_tokens, answer.output_tokens) == (7, 2, 3)
    assert (answer.text, answer.finish_reason, answer.is_ok, answer.is_short) == ("abc", "length", True, False)


def test_an_event_whose_text_is_held_back_is_an_arrival() -> None:
    assert answer_of(text("a"), text(""), text("b", "length")).times == (11.0, 12.0, 13.0)


def test_a_chats_opening_event_with_a_role_alone_is_no_token() -> None:
    answer = answer_of(delta(role="assistant", content=""), delta(content="a"), delta(content="b", finish="stop"))
    assert answer.times == (12.0, 13.0)


def test_reasoning_counts_as_output() -> None:
    assert answer_of(delta(reasoning_content="hm"), delta("stop", content="a")).times == (11.0, 12.0)


def test_without_usage_tokens_are_counted_by_events() -> None:
    answer = answer_of(text("a"), text("b", "length"))
    assert (answer.output_tokens, answer.has_usage, answer.is_short) == (2, False, True)


def test_several_tokens_an_event_make_the_time_a_token_shorter() -> None:
    answer = answer_of(text("a"), text("bc", "length"), {"choices": [], "usage": USAGE})
    assert answer.tpot_s == 0.5


def test_another_length_than_asked_for_is_short() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 2}
    assert answer_of(text("a"), text("b", "stop"), {"choices": [], "usage": usage}).is_short


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ({"error": {"message": "no", "type": "server_error", "code": None}}, "event_server_error"),
        ({"error": {"message": "no", "code": "prefill_failed"}}, "event_prefill_failed"),
        ({"error": {"code": 503}}, "event_503"),
        ({"error": "no"}, "event_error"),
        (b"{nonsense", "bad_event"),
        (b"[1, 2]", "bad_event"),
        ({"choices": [1]}, "bad_event"),
        ({"choices": [], "usage": 3}, "bad_event"),
        (b"[" * 100_000, "bad_event"),
    ],
)
def test_an_error_in_the_stream_has_a_code(event: dict[str, Any] | bytes, code: str) -> None:
    answer = answer_of(text("a"), event)
    assert (answer.error, answer.is_ok) == (code, False)


def test_a_stream_that_ends_without_a_finish_reason_was_cut() -> None:
    assert answer_of(text("a"), done=False).error == "cut"
    assert answer_of().error == "cut"


def test_a_stream_left_in_the_middle_has_no_error() -> None:
    recording = Recording(3, sent_s=10.0)
    recording.add(11.0, b'data: {"choices": [{"text": "a"}]}\n\ndata: {"choi')
    answer = read_answer(recording)
    assert (answer.times, answer.error, answer.is_ok) == ((11.0,), "", False)


def test_the_first_reason_for_a_failure_is_the_one_that_counts() -> None:
    recording = Recording(3, sent_s=10.0, end_s=12.0)
    recording.fail("broken", "reset\nby peer")
    recording.add(11.0, b'data: {"choi')
    answer = read_answer(recording)
    assert (answer.error, answer.detail) == ("broken", "reset by peer")
