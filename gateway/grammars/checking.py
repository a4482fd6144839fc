"""Whether workers will be able to follow a grammar: found out in a process aside, remembered, bounded in time."""

import asyncio
import contextlib
import json
import re
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from typing import Protocol

from gateway.grammars.errors import GrammarRefused

MAX_REMEMBERED = 512
TIMEOUT_S = 2.0
"""For one grammar; the process itself starts in some tenths of a second."""

MAX_WAITING = 64
"""Grammars that wait for the one process; more are told to come again."""

MAX_ANSWER_BYTES = 1 << 20

_UNKNOWN_KEYS = re.compile(r"Unimplemented keys: \[(.*)\]")


class CheckBusy(Exception):  # noqa: N818 - it says what happened
    """Too many grammars wait to be checked."""


class Grammars(Protocol):
    """Judges grammars."""

    async def check(self, grammar: str) -> None:
        """Raises ``GrammarRefused`` that says what is wrong with it, ``CheckBusy``."""


class GrammarCheck:
    """One per gateway process. Belongs to one event loop."""

    def __init__(self) -> None:
        """The process starts with the first grammar."""
        self._known: OrderedDict[str, str] = OrderedDict()
        self._turn = asyncio.Lock()
        self._num_waiting = 0
        self._process: Process | None = None

    async def check(self, grammar: str) -> None:
        """Raises ``GrammarRefused`` that says what is wrong with it, ``CheckBusy``."""
        fault = self._known.get(grammar)
        if fault is None:
            fault = await self._in_turn(grammar)
        self._known[grammar] = fault
        self._known.move_to_end(grammar)
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        if fault:
            raise GrammarRefused(fault)

    async def close(self) -> None:
        """End the process. Idempotent."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _in_turn(self, grammar: str) -> str:
        if self._num_waiting >= MAX_WAITING:
            raise CheckBusy
        self._num_waiting += 1
        try:
            async with self._turn:
                known = self._known.get(grammar)
                return await self._ask(grammar) if known is None else known
        finally:
            self._num_waiting -= 1

    async def _ask(self, grammar: str) -> str:
        """What is wrong with it. A process that is late, full or gone is ended: the next grammar gets another one."""
        process = await self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        answer = b""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                process.stdin.write(json.dumps(grammar).encode() + b"\n")
                await process.stdin.drain()
                answer = await process.stdout.readline()
        except (TimeoutError, ConnectionError):
            pass
        finally:
            if not answer.endswith(b"\n"):
                await self.close()
        return in_words(json.loads(answer)) if answer else "too complex: it takes too long, or too much memory"

    async def _running(self) -> Process:
        if self._process is None or self._process.returncode is not None:
            command = (sys.executable, "-m", "gateway.grammars.checker")
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, limit=MAX_ANSWER_BYTES
            )
        return self._process


def in_words(error: str) -> str:
    """What the library says, in one line; "" for no error."""
    keys = _UNKNOWN_KEYS.search(error)
    if keys is not None:
        return f"these keywords aren't supported: {keys[1].replace(chr(34), '')}"
    lines = [line.strip() for line in error.strip().splitlines()]
    return "; ".join(line for line in lines if line and set(line) - set("^ "))[:400]
