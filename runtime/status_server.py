"""A worker's small HTTP server: `/live /ready /metrics /debug/ledger`, and nothing else."""

import asyncio
import dataclasses
import json
import socket
from collections.abc import Callable
from http import HTTPStatus

from runtime.logs import get_logger
from runtime.metrics import CONTENT_TYPE
from runtime.tasks import Tasks

log = get_logger("status")

MAX_REQUEST_BYTES = 8192
"""Request line and headers together; a probe sends a few hundred bytes."""

REQUEST_TIMEOUT_S = 5.0
"""Seconds for one request, from the connection to the last byte of the answer."""

MAX_CONNECTIONS = 64
"""Connections at once; what comes on top is closed."""

Verdict = Callable[[], tuple[bool, str]]
"""Returns whether it is so, and why (not)."""


EVERY_ADDRESS = frozenset({"0.0.0.0", "::", ""})


def name_for_others(host: str) -> str:
    """By which a server that listens on ``host`` is reached from elsewhere: the host's name, if on every address."""
    return socket.gethostname() if host in EVERY_ADDRESS else host


def url_for_others(host: str, port: int) -> str:
    """Where a server that listens on ``host`` is reached from elsewhere."""
    name = name_for_others(host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


@dataclasses.dataclass(frozen=True, slots=True)
class _Answer:
    status: HTTPStatus
    body: bytes
    content_type: str = "application/json"


class StatusServer:
    """Answers GET from callables, which run on the loop and must be quick.

    One request a connection. A callable that raises is logged and answered with 500.
    """

    def __init__(
        self,
        host: str,
        port: int,
        live: Verdict,
        ready: Verdict,
        metrics: Callable[[], bytes],
        ledger: Callable[[], object],
    ) -> None:
        self._address = (host, port)
        self._pages: dict[str, Callable[[], _Answer]] = {
            "/live": lambda: _verdict("live", live),
            "/ready": lambda: _verdict("ready", ready),
            "/metrics": lambda: _Answer(HTTPStatus.OK, metrics(), CONTENT_TYPE),
            "/debug/ledger": lambda: _json(HTTPStatus.OK, ledger()),
        }
        self._connections = Tasks()
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen, and return the port (that the system chose, if it was given as 0).

        Raises:
            OSError: the address can't be listened on.

        """
        host, port = self._address
        self._server = await asyncio.start_server(self._on_connection, host, port, limit=MAX_REQUEST_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and end open connections; idempotent."""
        if self._server is not None:
            self._server.close()
        await self._connections.close()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        closing = self._server is None or not self._server.is_serving()
        if closing or len(self._connections) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._connections.spawn(self._serve(reader, writer), "status connection")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                writer.write(_encode(await self._answer(reader)))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError) as error:
            log.debug("status_connection_failed", error=str(error) or type(error).__name__)
        finally:
            writer.transport.abort()  # no effect on one that is closed

    async def _answer(self, reader: asyncio.StreamReader) -> _Answer:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "headers are too long")
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _error(HTTPStatus.BAD_REQUEST, "not an HTTP/1.1 request")
        method, target, _ = words
        page = self._pages.get(target.partition("?")[0])
        if page is None:
            return _error(HTTPStatus.NOT_FOUND, f"there are only {' '.join(self._pages)}")
        if method != "GET":
            return _error(HTTPStatus.METHOD_NOT_ALLOWED, "only GET")
        try:
            return page()
        except Exception as error:
            log.exception("status_page_failed", target=target)
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")


def _verdict(name: str, ask: Verdict) -> _Answer:
    holds, why = ask()
    status = HTTPStatus.OK if holds else HTTPStatus.SERVICE_UNAVAILABLE
    return _json(status, {name: holds, "why": why})


def _error(status: HTTPStatus, why: str) -> _Answer:
    return _json(status, {"error": why})


def _json(status: HTTPStatus, value: object) -> _Answer:
    return _Answer(status, json.dumps(value, default=_plain).encode() + b"\n")


def _plain(value: object) -> object:
    """Turn what JSON doesn't know into what it does."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return value.hex() if isinstance(value, bytes) else str(value)


def _encode(answer: _Answer) -> bytes:
    allow = "Allow: GET\r\n" if answer.status is HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        f"Cache-Control: no-store\r\n{allow}Connection: close\r\n\r\n"
    )
    return head.encode() + answer.body
