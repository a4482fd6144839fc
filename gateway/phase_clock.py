"""Where a request stands, since when, and until when at most."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

QUEUE = "queue"
PREFILL = "prefill"
TRANSFER = "transfer"
DECODE = "decode"
PHASES = (QUEUE, PREFILL, TRANSFER, DECODE)


class PhaseClock:
    """One phase at a time, each with a deadline that starts when it is entered.

    Waiting counts together over all attempts, so that a request that is refused again and again
    ends; the other phases start afresh with each attempt, and attempts are bounded.
    """

    def __init__(self, limits_s: dict[str, float], on_deadline: Callable[[str], None]) -> None:
        """``limits_s`` has seconds for each phase; ``on_deadline`` hears which one took too long."""
        self._loop = asyncio.get_running_loop()
        self._limits_s = limits_s
        self._on_deadline = on_deadline
        self._entered = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self.phase = ""
        self.spent_s: dict[str, float] = {}

    def enter(self, phase: str) -> None:
        """The phase before ends; nothing if this one runs already and is not a new try."""
        self.stop()
        limit = self._limits_s[phase]
        if phase == QUEUE:
            limit -= self.spent_s.get(QUEUE, 0.0)
        self.phase = phase
        self._entered = self._loop.time()
        self._timer = self._loop.call_later(max(limit, 0.0), self._on_deadline, phase)

    def stop(self) -> None:
        """No deadline runs any more; ``phase`` stays what it was. Idempotent."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        spent = self._loop.time() - self._entered
        self.spent_s[self.phase] = self.spent_s.get(self.phase, 0.0) + spent

    def left_ms(self, phase: str) -> int:
        """Milliseconds that this phase may still take; all of it if it hasn't begun."""
        left = self._limits_s[phase]
        if phase == self.phase and self._timer is not None:
            left = self._timer.when() - self._loop.time()
        elif phase == QUEUE:
            left -= self.spent_s.get(QUEUE, 0.0)
        return max(int(left * 1000), 1)

    def limit_s(self, phase: str) -> float:
        """Seconds that the phase may take in all."""
        return self._limits_s[phase]
