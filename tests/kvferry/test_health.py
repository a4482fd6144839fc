"""Asking the gateway how it is, and the request that a newcomer pastes."""

import http.server
import json
import shlex
import threading
from collections.abc import Iterator

import pytest

from kvferry.brokers import free_port
from kvferry.health import Health, ask_health, first_request

OK = {"status": "ok", "paths": ["split"], "prefill_workers": 1, "decode_workers": 2}


class Answer(http.server.BaseHTTPRequestHandler):
    status = 200
    body = b""

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[int]:
    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_health_is_what_the_gateway_says(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answer, "body", json.dumps(OK).encode())
    assert ask_health("127.0.0.1", server) == Health("ok", 1, 2)


def test_a_gateway_that_cant_serve_is_heard_too(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answer, "status", 503)
    monkeypatch.setattr(Answer, "body", json.dumps({**OK, "status": "unavailable"}).encode())
    assert ask_health("127.0.0.1", server) == Health("unavailable", 1, 2)


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"\xff", b'{"status":"ok"}'])
def test_what_isnt_a_health_answer_is_none(server: int, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answer, "body", body)
    assert ask_health("127.0.0.1", server) is None


def test_nobody_there_is_none() -> None:
    assert ask_health("127.0.0.1", free_port()) is None


def test_the_request_can_be_pasted() -> None:
    words = shlex.split(first_request("0.0.0.0", 8000, "my model's", with_key=True))
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/chat/completions"]
    assert "Authorization: Bearer $KVFERRY_API_KEY" in words
    body = json.loads(words[-1])
    assert body["model"] == "my model's"
    assert body["messages"][0]["content"] == "What is the capital of Japan?"


def test_the_request_has_no_key_where_none_is_needed() -> None:
    request = first_request("::1", 1, "m", with_key=False)
    assert "http://[::1]:1/" in request
    assert "Authorization" not in request
