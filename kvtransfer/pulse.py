"""Whether the engine makes progress: layers computed, and signs of life between steps."""

from __future__ import annotations

import asyncio

from engine.api import Ping
from engine.port import EnginePort

STUCK_S = 5.0
"""An engine that owes a sign of life this long, and computes no layer either, hangs."""


class Pulse:
    """Asks the engine for a sign of life with each heartbeat; ``progress`` moves as long as it gives one."""

    def __init__(self, engine: EnginePort) -> None:
        """Needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._engine = engine
        self._asked = 0
        self._answered = 0
        self._last = -1
        self._moved = self._loop.time()

    @property
    def owed(self) -> bool:
        """The engine hasn't answered the last question yet."""
        return self._answered < self._asked

    def ask(self) -> None:
        """One question at a time."""
        if not self.owed:
            self._asked += 1
            self._engine.submit(Ping(self._asked))

    def heard(self, number: int) -> None:
        """The engine answered."""
        self._answered = max(self._answered, number)

    def progress(self) -> int:
        """A counter that moves with every layer and every answer."""
        now = self._engine.pool.progress + self._answered
        if now != self._last:
            self._last, self._moved = now, self._loop.time()
        return now

    def stuck_s(self) -> float:
        """Seconds without progress while an answer is owed; 0 if there is nothing wrong."""
        self.progress()
        idle = self._loop.time() - self._moved
        return idle if self.owed and idle > STUCK_S else 0.0
