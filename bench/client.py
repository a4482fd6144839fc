"""One server over HTTP: requests sent, arrivals noted."""

import asyncio
import json
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp

from bench.errors import BenchError
from bench.recording import Recording
from bench.target import Target

CONNECT_TIMEOUT_S = 10.0
LIST_TIMEOUT_S = 20.0
MAX_ANSWER_BYTES = 64 << 20
"""A stream that brings more is ended: 100,000 tokens in events of 300 bytes have half of that."""

MAX_ERROR_BYTES = 64 << 10
MAX_LIST_BYTES = 1 << 20
_READ_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to send."""

    body: bytes
    output_len: int
    due_s: float = 0.0
    """Seconds after the start of the run."""


class Client:
    """Sends requests to one server, each over a connection of its own: servers close idle ones at will."""

    def __init__(self, target: Target, endpoint: str, api_key: str, timeout_s: float) -> None:
        """`endpoint` is the path; a request that takes longer than `timeout_s` in all is given up."""
        self._url = target.base_url + endpoint
        self._models_url = target.base_url + "/v1/models"
        self._target = target
        # Compressed, several events would come as one.
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        """Open the session."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=CONNECT_TIMEOUT_S),
            headers=self._headers,
            read_bufsize=_READ_BUFFER_BYTES,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the session."""
        await self._session.close()

    async def ask(self, body: bytes, recording: Recording) -> None:
        """Send one request and record its answer until it ends; what goes wrong is recorded too."""
        recording.sent_s = time.perf_counter()
        try:
            async with self._session.post(self._url, data=body, allow_redirects=False) as response:
                recording.path = response.headers.get("x-kvferry-path", "")[:40]
                if response.status == 200:
                    await _record(response.content, recording)
                else:
                    text = await _read(response.content, MAX_ERROR_BYTES)
                    recording.fail(f"http_{response.status}", text.decode(errors="replace"))
        except TimeoutError:
            recording.fail("timeout", f"no end within {self._timeout_s:g} s, or no connection in {CONNECT_TIMEOUT_S:g}")
        except aiohttp.ClientConnectorError as error:
            recording.fail("connect", str(error))
        except (aiohttp.ClientError, OSError) as error:
            recording.fail("broken", f"{type(error).__name__}: {error}")
        recording.end_s = time.perf_counter()

    async def first_model(self) -> str:
        """Return the name of the first model that the server lists. Raises `BenchError`."""
        limit = aiohttp.ClientTimeout(total=LIST_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with self._session.get(self._models_url, timeout=limit) as response:
                raw = await _read(response.content, MAX_LIST_BYTES)
                if response.status != 200:
                    raise BenchError(f"{self._target.name}: {self._models_url} answered {response.status}")
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise BenchError(f"{self._target.name}: {self._models_url} doesn't answer ({reason:.160})") from error
        try:
            return str(json.loads(raw)["data"][0]["id"])
        except (ValueError, LookupError, TypeError, RecursionError):
            raise BenchError(f"{self._target.name}: {self._models_url} lists no model; give --model") from None


async def _record(content: aiohttp.StreamReader, recording: Recording) -> None:
    left = MAX_ANSWER_BYTES
    async for chunk in content.iter_any():
        recording.add(time.perf_counter(), chunk)
        left -= len(chunk)
        if left < 0:
            recording.fail("too_long", f"more than {MAX_ANSWER_BYTES >> 20} MiB")
            return


async def _read(content: aiohttp.StreamReader, most_bytes: int) -> bytes:
    """Return the body, or as much of it as may be."""
    found = bytearray()
    async for chunk in content.iter_any():
        found += chunk
        if len(found) > most_bytes:
            break
    return bytes(found[:most_bytes])


def body_of(model: str, prompt: str, output_len: int, *, chat: bool, extra: dict[str, Any]) -> bytes:
    """Return a request for exactly `output_len` tokens, streamed, with usage at its end."""
    text = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    fields = {
        "model": model,
        **text,
        "max_tokens": output_len,
        "min_tokens": output_len,
        "ignore_eos": True,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **extra,
    }
    return json.dumps(fields).encode()


async def until(when_s: float) -> None:
    """Wait for a time of `time.perf_counter`."""
    await asyncio.sleep(max(when_s - time.perf_counter(), 0.0))
