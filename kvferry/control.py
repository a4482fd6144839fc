"""The control socket of `up`: one JSON line asks, one answers. In a private folder, so only its user can."""

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kvferry.errors import StartError
from runtime.tasks import Tasks

MAX_LINE_BYTES = 1 << 14
"""A question has a few dozen bytes; an answer names 128 workers at the most."""

ASK_SECONDS = 5.0
"""How long a client may take to ask, once it is connected."""

Handler = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


class ControlError(StartError):
    """The stack didn't do what it was asked, and says why."""


class ControlServer:
    """Answers one question a connection. A `StartError` of the handler is the answer `{"error": ...}`."""

    def __init__(self, path: Path, handle: Handler) -> None:
        """Made inside the running loop."""
        self._path = path
        self._handle = handle
        self._connections = Tasks()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen; only this user may connect."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short(self._path) as address:
            listener.bind(address)
        self._path.chmod(0o600)
        self._server = await asyncio.start_unix_server(self._accept, sock=listener, limit=MAX_LINE_BYTES)

    async def close(self) -> None:
        """Stop listening and whatever is being done for a client."""
        if self._server is not None:
            self._server.close()
        await self._connections.close()
        self._path.unlink(missing_ok=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.spawn(self._serve(reader, writer), "control connection")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(ASK_SECONDS):
                line = await reader.readline()
            writer.write(json.dumps(await self._answer(line)).encode() + b"\n")
            with suppress(OSError):  # who asked has left; what was asked for is done all the same
                await writer.drain()
        except (TimeoutError, ValueError):  # nothing came, or no end of line within the limit
            return
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> Mapping[str, Any]:
        try:
            question = json.loads(line)
        except ValueError:
            return {"error": "not a line of JSON"}
        if not isinstance(question, dict):
            return {"error": "not a JSON object"}
        try:
            return await self._handle(question)
        except StartError as error:
            return {"error": str(error)}


def ask_control(path: str, question: Mapping[str, Any], within_seconds: float) -> dict[str, Any]:
    """Return the answer of the `up` that listens there. Raises `ControlError`."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(within_seconds)
            with _short(Path(path)) as address:
                client.connect(address)
            client.sendall(json.dumps(question).encode() + b"\n")
            with client.makefile("rb") as stream:
                answer = json.loads(stream.readline(MAX_LINE_BYTES) or b"{}")
    except TimeoutError:
        raise ControlError(f"not done within {within_seconds:g} s; the stack goes on with it") from None
    except (OSError, ValueError) as error:
        raise ControlError(f"the stack can't be asked: {error}") from None
    if not isinstance(answer, dict) or not answer:
        raise ControlError("the stack ended before it was done")
    if "error" in answer:
        raise ControlError(str(answer["error"]))
    return answer


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """Name the socket in less than the 108 bytes that an address may have, however deep its folder lies."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
