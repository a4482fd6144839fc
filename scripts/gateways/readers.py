"""Clients that cost next to nothing: they send requests over open connections and count events."""

from __future__ import annotations

import asyncio
import json
import time
import typing
from dataclasses import dataclass, field

import uvloop

DONE = b"data: [DONE]"


@dataclass(slots=True)
class Run:
    """What one run has found. ``num_bad`` are answers that aren't what was asked for."""

    seconds: float = 0.0
    num_requests: int = 0
    num_tokens: int = 0
    num_bad: int = 0
    first_s: list[float] = field(default_factory=list)


class Reader(asyncio.Protocol):
    """One connection with one request at a time."""

    def __init__(self, request: bytes, num_tokens: int, run: Run) -> None:
        """``num_tokens`` are expected of every answer."""
        self._request, self._num_tokens, self._run = request, num_tokens, run
        self._answer = bytearray()
        self._first = 0.0
        self.over: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = typing.cast("asyncio.Transport", transport)

    def ask(self) -> asyncio.Future[None]:
        """Send the request; what is returned is done when the answer has ended."""
        self._answer.clear()
        self._first, self._sent = 0.0, time.perf_counter()
        self.over = asyncio.get_running_loop().create_future()
        self._transport.write(self._request)
        return self.over

    def data_received(self, data: bytes) -> None:
        """Some events."""
        if not self._first and b'"text"' in data:
            self._first = time.perf_counter()
        self._answer += data
        if self._answer.endswith(b"0\r\n\r\n") and self.over is not None:
            self._run.first_s.append(self._first - self._sent)
            self._run.num_requests += 1
            num_tokens = self._answer.count(b'"text":') - 1
            self._run.num_tokens += num_tokens
            self._run.num_bad += num_tokens != self._num_tokens or DONE not in self._answer
            self.over.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        """The server has closed it."""
        if self.over is not None and not self.over.done():
            self.over.set_exception(error or ConnectionError("the gateway closed a connection"))


async def _ask_all(port: int, request: bytes, num_tokens: int, num_requests: int, concurrency: int) -> Run:
    run = Run()
    left = num_requests
    loop = asyncio.get_running_loop()

    async def one_after_another() -> None:
        nonlocal left
        transport, reader = await loop.create_connection(lambda: Reader(request, num_tokens, run), "127.0.0.1", port)
        while left > 0:
            left -= 1
            await reader.ask()
        reader.over = None
        transport.close()

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(one_after_another())
    run.seconds = time.perf_counter() - start
    return run


def ask(port: int, prompt: list[int], num_tokens: int, num_requests: int, concurrency: int) -> Run:
    """Send ``num_requests`` streamed requests for ``num_tokens`` tokens each, so many at a time."""
    asked = {"prompt": prompt, "max_tokens": num_tokens, "stream": True, "ignore_eos": True, "temperature": 0}
    body = json.dumps(asked).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return uvloop.run(_ask_all(port, head.encode() + b"\r\n\r\n" + body, num_tokens, num_requests, concurrency))
