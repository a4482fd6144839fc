"""The ``kvferry`` object: where a request has been, for clients that ask and always in the log."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from gateway.generation import Generation, Try
from tests.support.http_twin import Api, events_of
from tests.support.scripted_dispatcher import ScriptedStream, says

TRIES = (Try("split", "p1", "d1", "worker_lost"), Try("fallback", "d2", "d2", ""))
SAID = {
    "request_id": "req0",
    "attempts": [
        {"path": "split", "prefill": "p1", "decode": "d1", "reason": "worker_lost"},
        {"path": "fallback", "prefill": "d2", "decode": "d2", "reason": ""},
    ],
    "phases_ms": {"queue": 0.5, "prefill": 20.0},
}


def api() -> Api:
    made = Api(says("abc"))
    submit = made.dispatcher.submit

    async def with_tries(generation: Generation) -> ScriptedStream:
        stream = await submit(generation)
        stream.tries = TRIES
        return stream

    made.dispatcher.submit = with_tries  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize("fields", [{"kvferry": True}, {"stream_options": {"include_kvferry": True}}])
def test_the_last_chunk_has_it_on_request(fields: dict[str, Any]) -> None:
    events = events_of(api().chat(stream=True, **fields))
    assert events[-1]["kvferry"] == SAID
    assert events[-1]["choices"] == []
    assert "usage" not in events[-1]
    assert not any("kvferry" in event for event in events[:-1])


def test_it_shares_the_chunk_with_usage() -> None:
    options = {"include_usage": True, "include_kvferry": True}
    events = events_of(api().complete(stream=True, stream_options=options))
    assert events[-1]["kvferry"] == SAID
    assert events[-1]["usage"]["completion_tokens"]
    assert events[-2]["choices"]


def test_an_answer_that_is_not_streamed_has_it_too() -> None:
    assert api().chat(kvferry=True).json()["kvferry"] == SAID


@pytest.mark.parametrize("stream", [False, True])
def test_nobody_gets_it_without_asking(stream: bool) -> None:
    assert b"kvferry" not in api().chat(stream=stream).content


def test_several_prompts_have_one_each() -> None:
    body = api().complete(prompt=["abc", "xyz"], kvferry=True).json()
    assert [each["request_id"] for each in body["kvferry"]["requests"]] == ["req0", "req1"]


@pytest.mark.parametrize("fields", [{"kvferry": "yes"}, {"kvferry": 1}, {"kvferry": {}}])
def test_only_true_and_false_will_do(fields: dict[str, Any]) -> None:
    assert api().chat(**fields).status_code == (200 if fields["kvferry"] == {} else 400)


def test_the_access_log_has_the_tries_and_phases_always(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        api().chat()
    [record] = [each for each in caplog.records if each.getMessage() == "request"]
    fields = record.__dict__["fields"]
    assert fields["tries"] == "split p1>d1 worker_lost; fallback d2"
    assert (fields["queue_ms"], fields["prefill_ms"]) == (0.5, 20.0)
