"""A line between two of our processes: what is told, and questions with their answers, as JSON, one a line."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from runtime.logs import get_logger
from runtime.tasks import Tasks

MAX_LINE_BYTES = 16 << 20
"""All metrics of a gateway are some ten thousands."""

MAX_UNSENT_BYTES = 1 << 20
"""More than that waits for nobody: the other end doesn't read."""

_TOLD, _ASKED, _ANSWERED = "told", "asked", "answered"

log = get_logger("gateway.line")

Hear = Callable[[Any], Any | Awaitable[Any]]
"""Takes what was told or asked; what it returns is the answer."""


class LineBroken(Exception):  # noqa: N818 - it says what happened
    """The other end is gone, or doesn't read, or doesn't answer."""


class Line:
    """One end. Made by ``open_line``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hear: Mapping[str, Hear]) -> None:
        self._reader, self._writer, self._hear = reader, writer, hear
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._tasks = Tasks()

    def start(self) -> None:
        """Begin to hear."""
        self._tasks.spawn(self._listen(), "line")

    def tell(self, what: str, value: Any) -> None:
        """Nobody answers; lost if the other end is gone or doesn't read."""
        if self._writer.transport.get_write_buffer_size() < MAX_UNSENT_BYTES:
            self._send(_TOLD, 0, what, value)

    async def ask(self, what: str, within_s: float) -> Any:
        """The other end's answer. Raises ``LineBroken``."""
        if self._writer.is_closing() or self._writer.transport.get_write_buffer_size() >= MAX_UNSENT_BYTES:
            raise LineBroken("the other end is gone, or doesn't read")
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._send(_ASKED, number, what, None)
        try:
            async with asyncio.timeout(within_s):
                return await answer
        except TimeoutError:
            raise LineBroken(f"no answer within {within_s:g} s") from None
        finally:
            del self._asked[number]

    async def close(self) -> None:
        """End it; whoever waits for an answer has none. Idempotent."""
        self._writer.close()
        await self._tasks.close()
        self._give_up()

    async def _listen(self) -> None:
        try:
            while (line := await self._reader.readline()).endswith(b"\n"):
                kind, number, what, value = json.loads(line)
                if kind == _ANSWERED:
                    answer = self._asked.get(number)
                    if answer is not None and not answer.done():
                        answer.set_result(value)
                elif kind == _TOLD:
                    self._hear[what](value)
                else:
                    self._tasks.spawn(self._answer(number, what, value), f"answer {what}")
        except ConnectionError:
            log.debug("line_reset")
        finally:
            self._writer.close()
            self._give_up()

    async def _answer(self, number: int, what: str, value: Any) -> None:
        answer = self._hear[what](value)
        if isinstance(answer, Awaitable):
            answer = await answer
        self._send(_ANSWERED, number, what, answer)

    def _send(self, kind: str, number: int, what: str, value: Any) -> None:
        self._writer.write(json.dumps([kind, number, what, value]).encode() + b"\n")

    def _give_up(self) -> None:
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(LineBroken("the other end is gone"))


async def open_line(sock: socket.socket, hear: Mapping[str, Hear]) -> Line:
    """A line over this end of a pair, which it closes; it hears from ``start`` on."""
    reader, writer = await asyncio.open_unix_connection(sock=sock, limit=MAX_LINE_BYTES)
    return Line(reader, writer, hear)
