"""A server of known delays: what the generator measures of it can be compared with what it did."""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

MAX_BODY_BYTES = 16 << 20
_START_TIMEOUT_S = 10.0
_SWITCH_INTERVAL_S = 0.0005
"""Python's lock changes hands so often while the stub runs; the usual 5 ms would show in what it notes."""

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Delays:
    """In seconds, from a request's arrival."""

    ttft_s: float = 1.0
    gap01_s: float = 0.08
    gap_s: float = 0.05
    slow_gap_s: float = 0.1
    slow_every: int = 10
    """Of so many gaps one is slow, so that the percentiles differ."""

    def schedule(self, num_tokens: int) -> list[float]:
        """Return when each token is due."""
        times = [self.ttft_s]
        for number in range(1, num_tokens):
            slow = self.slow_gap_s if number % self.slow_every == 0 else self.gap_s
            times.append(times[-1] + (self.gap01_s if number == 1 else slow))
        return times


@dataclass(slots=True)
class Served:
    """What the server did for one request, in `time.perf_counter` seconds."""

    received_s: float
    headers: dict[str, str]
    body: dict[str, Any]
    sent_s: list[float] = field(default_factory=list)
    end_s: float = 0.0


class Stub:
    """Serves ``/v1/models`` and streamed answers on a free port of 127.0.0.1, in a thread of its own.

    It answers each request with the tokens asked for, says so in its usage, and notes when it sent each.
    """

    def __init__(self, delays: Delays) -> None:
        self._delays = delays
        self.served: list[Served] = []
        self.base_url = ""

    def __enter__(self) -> Self:
        """Start, and wait until it listens."""
        self._switch_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready.set,), name="stub", daemon=True)
        self._thread.start()
        if not ready.wait(_START_TIMEOUT_S):
            raise RuntimeError("the stub server didn't start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, open requests included."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        sys.setswitchinterval(self._switch_interval_s)

    def _run(self, on_ready: Callable[[], None]) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(on_ready))

    async def _serve(self, on_ready: Callable[[], None]) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        on_ready()
        await self._stop.wait()
        server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._request(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client left; a server goes on
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        received_s = time.perf_counter()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if first.startswith("GET"):
            self.list_models(writer)
        else:
            length = min(int(headers["content-length"]), MAX_BODY_BYTES)
            served = Served(received_s, headers, json.loads(await reader.readexactly(length)))
            self.served.append(served)
            await self.answer(served, writer)
            served.end_s = time.perf_counter()
        await writer.drain()

    def list_models(self, writer: asyncio.StreamWriter) -> None:
        """Name the one model."""
        body = json.dumps({"object": "list", "data": [{"id": "stub", "object": "model"}]}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    async def answer(self, served: Served, writer: asyncio.StreamWriter) -> None:
        """Stream the tokens at their times."""
        writer.write(_HEAD)
        num_tokens = int(served.body["max_tokens"])
        is_chat = "messages" in served.body
        for number, due_s in enumerate(self._delays.schedule(num_tokens)):
            await asyncio.sleep(max(served.received_s + due_s - time.perf_counter(), 0.0))
            served.sent_s.append(time.perf_counter())
            writer.write(chunked(event(is_chat, number, is_last=number == num_tokens - 1)))
            await writer.drain()  # ends this if the client has left
        usage = {"prompt_tokens": 1, "completion_tokens": num_tokens, "total_tokens": num_tokens + 1}
        writer.write(chunked({"choices": [], "usage": usage}) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


def event(is_chat: bool, number: int, *, is_last: bool) -> dict[str, Any]:
    """Return one token's event."""
    text = f" {number}"
    choice = {"delta": {"content": text}} if is_chat else {"text": text}
    return {"choices": [{"index": 0, **choice, "finish_reason": "length" if is_last else None}]}


def chunked(data: dict[str, Any]) -> bytes:
    """Return an event as a chunk of a body."""
    text = b"data: " + json.dumps(data).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(text), text)
