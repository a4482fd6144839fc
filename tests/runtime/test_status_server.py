"""The status server answers its four pages, says why, and can't be held up or filled up."""

import asyncio
import contextlib
import dataclasses
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from runtime import status_server
from runtime.status_server import StatusServer, url_for_others


@dataclasses.dataclass(frozen=True, slots=True)
class Hold:
    owner: str
    blocks: frozenset[int]


class Service:
    """What the pages are made from."""

    ready = (True, "")

    def ledger(self) -> object:
        return {"held": 2, "holds": [Hold("r1", frozenset({2, 1}))]}


@contextlib.asynccontextmanager
async def connection(
    port: int,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def ask(port: int, request: bytes) -> tuple[int, str, bytes]:
    async with connection(port) as (reader, writer):
        writer.write(request)
        answer = await reader.read()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), head.decode(), body


async def get(port: int, target: str) -> tuple[int, str, bytes]:
    return await ask(port, f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


@pytest.fixture
def serve(run: Any) -> Callable[[Callable[[int, Service], Awaitable[None]]], None]:
    """Run a test body against a server of its own."""

    def with_server(body: Callable[[int, Service], Awaitable[None]]) -> None:
        async def main() -> None:
            service = Service()
            server = StatusServer(
                "127.0.0.1",
                0,
                live=lambda: (True, "beats"),
                ready=lambda: service.ready,
                metrics=lambda: b"kvferry_x 1.0\n",
                ledger=lambda: service.ledger(),
            )
            port = await server.start()
            try:
                await body(port, service)
            finally:
                await server.close()
                await server.close()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)

        run(main())

    return with_server


def test_live_and_ready_say_why(serve: Any) -> None:
    async def body(port: int, service: Service) -> None:
        status, _, page = await get(port, "/live")
        assert (status, json.loads(page)) == (200, {"live": True, "why": "beats"})
        assert (await get(port, "/ready?verbose"))[0] == 200
        service.ready = (False, "no gateway has our fingerprint")
        status, _, page = await get(port, "/ready")
        assert (status, json.loads(page)["why"]) == (503, "no gateway has our fingerprint")

    serve(body)


def test_metrics_are_text_and_the_ledger_is_json(serve: Any) -> None:
    async def body(port: int, service: Service) -> None:
        status, head, page = await get(port, "/metrics")
        assert (status, page) == (200, b"kvferry_x 1.0\n")
        assert "Content-Type: text/plain" in head
        status, head, page = await get(port, "/debug/ledger")
        assert json.loads(page) == {"held": 2, "holds": [{"owner": "r1", "blocks": [1, 2]}]}
        assert f"Content-Length: {len(page)}" in head

    serve(body)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /live HTTP/1.1\r\n\r\n", 405),
        (b"GET /etc/passwd HTTP/1.1\r\n\r\n", 404),
        (b"GET /live\r\n\r\n", 400),
        (b"\xff\xfe\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nX: " + b"x" * 9_000 + b"\r\n\r\n", 431),
    ],
)
def test_anything_else_is_refused_with_the_right_status(serve: Any, request_bytes: bytes, status: int) -> None:
    async def body(port: int, service: Service) -> None:
        given, _, page = await ask(port, request_bytes)
        assert given == status
        assert json.loads(page)["error"]

    serve(body)


def test_a_page_that_raises_is_a_500_and_the_server_lives_on(serve: Any) -> None:
    async def body(port: int, service: Service) -> None:
        service.ledger = lambda: 1 // 0  # type: ignore[method-assign]
        status, _, page = await get(port, "/debug/ledger")
        assert status == 500
        assert "ZeroDivisionError" in json.loads(page)["error"]
        assert (await get(port, "/live"))[0] == 200

    serve(body)


def test_a_client_that_says_nothing_is_cut_off(serve: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(status_server, "REQUEST_TIMEOUT_S", 0.02)

    async def body(port: int, service: Service) -> None:
        async with connection(port) as (reader, _):
            assert await reader.read() == b""

    serve(body)


def test_what_comes_on_top_of_the_most_connections_is_closed(serve: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(status_server, "MAX_CONNECTIONS", 2)

    async def body(port: int, service: Service) -> None:
        async with connection(port), connection(port), connection(port) as (reader, _):
            assert await reader.read() == b""

    serve(body)


def test_close_does_not_wait_for_idle_clients(serve: Any) -> None:
    async def body(port: int, service: Service) -> None:
        idle.append(socket.create_connection(("127.0.0.1", port)))
        assert (await get(port, "/live"))[0] == 200  # by now the idle one is accepted too

    idle: list[socket.socket] = []
    serve(body)
    assert idle[0].recv(1) == b""
    idle[0].close()


def test_a_port_on_every_address_is_told_others_by_the_hosts_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "node-7")
    assert url_for_others("0.0.0.0", 9000) == "http://node-7:9000"
    assert url_for_others("::", 9000) == "http://node-7:9000"
    assert url_for_others("127.0.0.1", 9000) == "http://127.0.0.1:9000"
    assert url_for_others("fe80::1", 9000) == "http://[fe80::1]:9000"
