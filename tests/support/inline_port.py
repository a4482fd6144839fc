"""An engine that takes its turns on the event loop itself: every run of a program is the same."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from engine.api import Command, Report
from engine.core import Engine
from engine.pool_memory import PoolMemory
from engine.port import Started

STEP_S = 0.02
"""Virtual seconds a step takes."""


class InlinePort:
    """io's side of an engine in the same loop. ``freeze`` stops it as SIGSTOP would."""

    def __init__(self, started: Started, pool: PoolMemory, engine: Engine) -> None:
        self.started = started
        self.pool = pool
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._commands: deque[Command] = deque()
        self._on_report: Callable[[Report], None] = lambda report: None
        self._on_death: Callable[[int], None] = lambda: None
        self._turn_due = False
        self._closed = False
        self.frozen = False

    def submit(self, command: Command) -> None:
        self._commands.append(command)
        self._schedule(0.0)

    def listen(self, on_report: Callable[[Report], None], on_death: Callable[[int], None]) -> None:
        self._on_report, self._on_death = on_report, on_death
        self._loop.call_soon(on_report, self._engine.report())

    def thaw(self) -> None:
        self.frozen = False
        self._schedule(0.0)

    def die(self, exit_code: int) -> None:
        """End unasked."""
        if not self._closed:
            self._closed = True
            self._on_death(exit_code)

    async def close(self) -> None:
        self._closed = True

    def _schedule(self, after_s: float) -> None:
        if not self._turn_due and not self._closed:
            self._turn_due = True
            self._loop.call_later(after_s, self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        if self._closed or self.frozen:
            return
        while self._commands:
            self._engine.submit(self._commands.popleft())
        if self._engine.has_work():
            self._on_report(self._engine.step())
            self._engine.check()
        if self._engine.has_work() or self._commands:
            self._schedule(STEP_S)
