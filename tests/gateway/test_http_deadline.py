"""The header that says how long a client will wait, and the server's own limit."""

from __future__ import annotations

import asyncio

import pytest

from gateway.access_log import RequestRecord
from gateway.deadline import HEADER
from gateway.errors import GatewayError, from_code
from gateway.http_settings import HttpSettings
from gateway.metrics import HttpMetrics
from gateway.requests import Job
from gateway.run import Run
from gateway.transcript import TextSettings
from protocol.errors import Code
from protocol.sampling import Sampling
from runtime.metrics import Metrics
from tests.support.http_twin import CHAT, COMPLETIONS, HELLO, Api, error_of, events_of, run
from tests.support.scripted_dispatcher import ScriptedDispatcher, says, small_tokenizer

SLACK_MS = 5_000
"""What a request may take on a busy machine until it is submitted."""


def asked(header: str | None, server_s: float = 0.0) -> int:
    """The deadline with which the request is submitted."""
    api = Api(says("abc"), settings=HttpSettings(request_timeout_s=server_s))
    headers = {HEADER: header} if header is not None else {}
    response = api.request("POST", CHAT, json={"messages": HELLO}, headers=headers)
    assert response.status_code == 200, response.text
    (generation,) = api.dispatcher.generations
    return generation.deadline_ms


def test_without_header_and_limit_there_is_no_deadline() -> None:
    assert asked(None) == 0


def test_the_header_is_passed_on_less_what_has_gone() -> None:
    assert 60_000 - SLACK_MS < asked("60000") <= 60_000


def test_the_servers_limit_is_the_default() -> None:
    assert 30_000 - SLACK_MS < asked(None, server_s=30.0) <= 30_000


def test_a_client_may_ask_for_less_and_not_for_more() -> None:
    assert asked("20000", server_s=30.0) <= 20_000
    assert 20_000 < asked("999999", server_s=30.0) <= 30_000


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "1e3", "soon", "", "1" * 13, "٣", " 5 5"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_bad_value_is_a_400_that_names_the_header(path: str, value: str) -> None:
    api = Api(says("abc"))
    response = api.request("POST", path, json={"messages": HELLO}, headers=[(HEADER.encode(), value.encode())])
    assert error_of(response, 400)["param"] == HEADER
    assert not api.dispatcher.streams


def test_two_of_them_are_refused() -> None:
    headers = [(HEADER, "100"), (HEADER, "200")]
    error_of(Api(says("abc")).request("POST", CHAT, json={"messages": HELLO}, headers=headers), 400)


def test_a_deadline_that_has_passed_before_a_worker_was_asked_asks_none() -> None:
    async def scenario() -> None:
        job = Job(((1, 2),), 1, Sampling(), TextSettings(), "", "", False, False)
        dispatcher = ScriptedDispatcher(says("abc"))
        record = RequestRecord()
        record.started -= 10.0
        late = Run(job, small_tokenizer(), record, HttpMetrics(Metrics()), 9_999)
        with pytest.raises(GatewayError) as caught:
            await late.start(dispatcher)
        assert (caught.value.status, caught.value.code) == (504, "deadline_exceeded")
        assert not dispatcher.streams
        await asyncio.sleep(0)

    run(scenario())


def test_it_ends_a_stream_with_an_error_event() -> None:
    error = from_code(Code.DEADLINE, "the request's deadline of 5 ms passed in its decode phase")
    events = events_of(Api([*says("abc xyz")[:2], error]).chat(stream=True))
    assert events[-1]["error"]["code"] == "deadline_exceeded"
    assert "decode" in events[-1]["error"]["message"]


def test_it_ends_an_answer_that_is_not_streamed_with_a_504() -> None:
    error = from_code(Code.DEADLINE, "the request's deadline of 5 ms passed in its decode phase")
    assert error_of(Api([*says("abc xyz")[:2], error]).chat(), 504)["code"] == "deadline_exceeded"


@pytest.mark.parametrize("stream", [False, True])
def test_an_operators_cancel_is_told_as_such(stream: bool) -> None:
    error = from_code(Code.CANCELLED, "by hand")
    api = Api([*says("abc xyz")[:2], error])
    response = api.chat(stream=stream)
    told = events_of(response)[-1]["error"] if stream else error_of(response, 499)
    assert (told["code"], told["message"]) == ("cancelled", "by hand")


def test_a_request_that_two_workers_crashed_over_should_not_be_retried() -> None:
    response = Api([from_code(Code.CRASHED, "2 workers ended")]).chat()
    assert error_of(response, 500)["code"] == "worker_crashed"
    assert response.headers["x-should-retry"] == "false"


def test_a_gateway_that_drains_says_when_to_come_again() -> None:
    api = Api()
    api.dispatcher.refusal = from_code(Code.DRAINING, "this gateway ends")
    response = api.chat()
    assert error_of(response, 503)["code"] == "draining"
    assert response.headers["retry-after"] == "1"
