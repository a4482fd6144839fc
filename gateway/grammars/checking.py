"""Whether workers will be able to follow a grammar: found out in a process aside, remembered, bounded in time."""

import asyncio
import contextlib
import hashlib
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from typing import Protocol

from gateway.grammars.errors import GrammarRefused

MAX_REMEMBERED = 4096
PATIENCE_S = 10.0
"""For the process to start, and for an answer: it has two seconds of a core for a grammar, however busy the machine."""

MAX_WAITING = 64
"""Grammars that wait for the one process; more are told to come again."""

MAX_ANSWER_BYTES = 1 << 20
TOO_MUCH = frozenset({-signal.SIGXCPU, -signal.SIGABRT})
"""How the process ends of a grammar that takes too long, or too much memory."""

NOT_ITS_CONCERN = ("KVFERRY_",)
"""Variables with credentials among them; it reads what strangers have written."""

_UNKNOWN_KEYS = re.compile(r"Unimplemented keys: \[(.*)\]")


class CheckBusy(Exception):  # noqa: N818 - it says what happened
    """The grammar couldn't be checked now, which says nothing of it."""


class Grammars(Protocol):
    """Judges grammars."""

    async def check(self, grammar: str) -> None:
        """Raises ``GrammarRefused`` that says what is wrong with it, ``CheckBusy``."""


class GrammarCheck:
    """One per gateway process. Belongs to one event loop."""

    def __init__(self) -> None:
        """The process starts with the first grammar."""
        self._known: OrderedDict[bytes, str] = OrderedDict()
        self._turn = asyncio.Lock()
        self._num_waiting = 0
        self._process: Process | None = None

    async def check(self, grammar: str) -> None:
        """Raises ``GrammarRefused`` that says what is wrong with it, ``CheckBusy``."""
        name = hashlib.blake2b(grammar.encode("utf-8", "surrogatepass")).digest()
        fault = self._known.get(name)
        if fault is None:
            fault = await self._in_turn(name, grammar)
        self._known[name] = fault
        self._known.move_to_end(name)
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

    async def _in_turn(self, name: bytes, grammar: str) -> str:
        if self._num_waiting >= MAX_WAITING:
            raise CheckBusy
        self._num_waiting += 1
        try:
            async with self._turn:
                known = self._known.get(name)
                return await self._ask(grammar) if known is None else known
        finally:
            self._num_waiting -= 1

    async def _ask(self, grammar: str) -> str:
        """What is wrong with it. A process that ends of it, or says nothing, makes way for another one.

        Raises ``CheckBusy`` where that says nothing of the grammar.
        """
        process = await self._running()
        assert process.stdin is not None
        answer = ""
        try:
            async with asyncio.timeout(PATIENCE_S):
                process.stdin.write(json.dumps(grammar).encode() + b"\n")
                await process.stdin.drain()
                answer = await _line(process)
                if not answer and await process.wait() in TOO_MUCH:
                    return "too complex: checking it takes too long, or too much memory"
        except (TimeoutError, ConnectionError):
            pass
        finally:
            if not answer:
                await self.close()
        if not answer:
            raise CheckBusy
        return in_words(json.loads(answer))

    async def _running(self) -> Process:
        """The process, once it is ready. Raises ``CheckBusy`` if it doesn't get so far."""
        if self._process is None or self._process.returncode is not None:
            command = (sys.executable, "-m", "gateway.grammars.checker")
            own = {name: value for name, value in os.environ.items() if not name.startswith(NOT_ITS_CONCERN)}
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, limit=MAX_ANSWER_BYTES, env=own
            )
            ready = ""
            try:
                async with asyncio.timeout(PATIENCE_S):
                    ready = await _line(self._process)
            except TimeoutError:
                pass
            finally:
                if not ready:
                    await self.close()
            if not ready:
                raise CheckBusy
        return self._process


async def _line(process: Process) -> str:
    """A whole line that it says; "" at its end."""
    assert process.stdout is not None
    said = await process.stdout.readline()
    return said.decode() if said.endswith(b"\n") else ""


def in_words(error: str) -> str:
    """What the library says, in one line; "" for no error."""
    keys = _UNKNOWN_KEYS.search(error)
    if keys is not None:
        return f"these keywords aren't supported: {keys[1].replace(chr(34), '')}"
    lines = [line.strip() for line in error.strip().splitlines()]
    return "; ".join(line for line in lines if line and set(line) - set("^ "))[:400]
