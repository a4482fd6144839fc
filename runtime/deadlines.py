"""Deadlines per phase on this process's own clock: they run whether or not new work comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from protocol.messages import Key

RECHECK_S = 1.0


@dataclass(slots=True)
class _Phase:
    name: str
    timer: asyncio.TimerHandle


class Deadlines:
    """One phase a key. While ``frozen()`` no phase ends: judging waits until this process hears the bus again."""

    def __init__(self, on_late: Callable[[Key, str], None], frozen: Callable[[], bool]) -> None:
        """``on_late(key, phase)`` is called once when a phase took too long. Needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._on_late = on_late
        self._frozen = frozen
        self._phases: dict[Key, _Phase] = {}

    def enter(self, key: Key, phase: str, within_s: float) -> None:
        """The key is in this phase from now on; the one before is over."""
        self.leave(key)
        timer = self._loop.call_later(within_s, self._late, key)
        self._phases[key] = _Phase(phase, timer)

    def leave(self, key: Key) -> None:
        """No deadline any more. Idempotent."""
        phase = self._phases.pop(key, None)
        if phase is not None:
            phase.timer.cancel()

    def close(self) -> None:
        """Stop all of them."""
        for key in list(self._phases):
            self.leave(key)

    def _late(self, key: Key) -> None:
        phase = self._phases[key]
        if self._frozen():
            phase.timer = self._loop.call_later(RECHECK_S, self._late, key)
            return
        del self._phases[key]
        self._on_late(key, phase.name)
