"""Requests are sent as the workload says, over real sockets, and every failure has a code."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable

import pytest

from bench import client as client_module
from bench.client import Ask, Client, body_of
from bench.errors import BenchError
from bench.figures import Limits, Sent, figures_of
from bench.load import Load
from bench.loop import run_loop
from bench.stub import Delays, Served, Stub, chunked, event
from bench.target import Target

COMPLETIONS = "/v1/completions"
QUICK = Delays(ttft_s=0.02, gap01_s=0.005, gap_s=0.005, slow_gap_s=0.005)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def asks(count: int, num_tokens: int = 4, every_s: float = 0.0) -> list[Ask]:
    body = body_of("stub", "hello", num_tokens, chat=False, extra={})
    return [Ask(body, num_tokens, number * every_s) for number in range(count)]


def measure(url: str, work: Callable[[Load], object], *, timeout_s: float = 20.0, key: str = "") -> Sent:
    async def go() -> Sent:
        async with Client(Target("x", url), COMPLETIONS, key, timeout_s) as client:
            sent = await work(Load(client, lambda num_done: None))  # type: ignore[misc]
            assert isinstance(sent, Sent)
            return sent

    return run_loop(go())


def errors_of(url: str, count: int = 1, timeout_s: float = 20.0) -> dict[str, int]:
    sent = measure(url, lambda load: load.closed(asks(count), 1), timeout_s=timeout_s)
    return figures_of(sent, Limits()).errors


class Answering(Stub):
    """Answers with given bytes, then closes."""

    def __init__(self, *raw: bytes) -> None:
        super().__init__(QUICK)
        self._raw = itertools.cycle(raw)

    async def answer(self, served: Served, writer: asyncio.StreamWriter) -> None:
        writer.write(next(self._raw))


class Silent(Stub):
    """Never answers."""

    async def answer(self, served: Served, writer: asyncio.StreamWriter) -> None:
        await self._stop.wait()


def test_a_closed_loop_keeps_its_concurrency_and_sends_all() -> None:
    with Stub(QUICK) as stub:
        sent = measure(stub.base_url, lambda load: load.closed(asks(9), 3))
    marks = sorted([(each.received_s, 1) for each in stub.served] + [(each.sent_s[-1], -1) for each in stub.served])
    assert max(itertools.accumulate(change for _, change in marks)) == 3
    assert len(sent.answers) == len(stub.served) == 9
    assert all(answer.is_ok and not answer.is_short for answer in sent.answers)


def test_an_open_loop_sends_when_due_without_waiting_for_answers() -> None:
    with Stub(Delays(ttft_s=0.3, gap01_s=0.01, gap_s=0.01)) as stub:
        sent = measure(stub.base_url, lambda load: load.open(asks(6, every_s=0.02)))
    assert max(each.received_s for each in stub.served) < min(each.sent_s[0] for each in stub.served)
    sent_s = sorted(answer.sent_s - sent.start_s for answer in sent.answers)
    assert all(at >= number * 0.02 - 0.002 for number, at in enumerate(sent_s))
    assert all(answer.lag_s >= 0 and answer.is_ok for answer in sent.answers)


def test_a_request_asks_for_an_exact_length_with_its_usage_and_carries_the_key() -> None:
    with Stub(QUICK) as stub:
        measure(stub.base_url, lambda load: load.closed(asks(1, 3), 1), key="sk-x")
    (served,) = stub.served
    expected = {"prompt": "hello", "max_tokens": 3, "min_tokens": 3, "ignore_eos": True, "stream": True}
    assert served.body.items() >= expected.items()
    assert served.body["stream_options"] == {"include_usage": True}
    assert served.headers["authorization"] == "Bearer sk-x"


def test_steady_streams_are_watched_once_all_flow_and_left_at_the_end() -> None:
    longs = [Ask(body_of("stub", "long", 2, chat=False, extra={}), 2, due_s) for due_s in (0.0, 0.1)]
    with Stub(Delays(ttft_s=0.05, gap01_s=0.01, gap_s=0.01, slow_gap_s=0.01)) as stub:
        streams = [asks(2, 500) for _ in range(3)]
        sent = measure(stub.base_url, lambda load: load.steady(streams, longs, 0.3))
    assert sent.end_s - sent.start_s == pytest.approx(0.3, abs=0.1)
    assert [len(answer.times) for answer in sent.longs] == [2, 2]
    assert all(answer.times[1] < sent.start_s and not answer.end_s for answer in sent.answers)
    figures = figures_of(sent, Limits())
    assert (figures.num_unfinished, figures.errors) == (3, {})
    assert figures.output_tokens == pytest.approx(90, rel=0.3)


def test_a_steady_stream_without_requests_left_is_noticed() -> None:
    with Stub(QUICK) as stub:
        sent = measure(stub.base_url, lambda load: load.steady([asks(1), asks(1, 500)], [], 0.1))
    assert sent.num_dry == 1


def test_steady_streams_of_a_server_that_refuses_end_with_its_errors() -> None:
    with Answering(b"HTTP/1.1 503 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n") as stub:
        sent = measure(stub.base_url, lambda load: load.steady([asks(3)] * 2, [], 0.01))
    assert set(figures_of(sent, Limits()).errors) == {"http_503"}


def test_errors_are_counted_by_code() -> None:
    busy = b"HTTP/1.1 429 X\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy"
    gone = b"HTTP/1.1 302 X\r\nLocation: /\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    broken = HEAD + chunked(event(False, 0, is_last=False))
    cut = broken + b"0\r\n\r\n"
    failing = HEAD + chunked({"error": {"code": "decode_failed"}}) + b"0\r\n\r\n"
    with Answering(busy, gone, broken, cut, failing, b"nonsense\r\n\r\n") as stub:
        found = errors_of(stub.base_url, 7)
    assert found == {"broken": 2, "cut": 1, "event_decode_failed": 1, "http_302": 1, "http_429": 2}


def test_a_server_that_never_answers_is_given_up_after_the_timeout() -> None:
    with Silent(QUICK) as stub:
        assert errors_of(stub.base_url, timeout_s=0.1) == {"timeout": 1}


def test_a_server_that_is_not_there_is_a_failed_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert errors_of(f"http://127.0.0.1:{port}") == {"connect": 1}


def test_an_answer_without_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_ANSWER_BYTES", 1000)
    many = HEAD + b"".join(chunked(event(False, number, is_last=False)) for number in range(100))
    with Answering(many) as stub:
        assert errors_of(stub.base_url) == {"too_long": 1}


@pytest.mark.parametrize("body", [b"{}", b"no json", b'{"data": []}', b"[" * 3_000_000])
def test_a_server_without_models_is_refused_in_one_line(body: bytes) -> None:
    class Listing(Stub):
        def list_models(self, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    async def go(url: str) -> None:
        async with Client(Target("x", url), COMPLETIONS, "", 5.0) as client:
            await client.first_model()

    with Listing(QUICK) as stub, pytest.raises(BenchError, match="lists no model; give --model"):
        run_loop(go(stub.base_url))
