"""Whether the bus can be heard: a peer's silence is nobody's fault while it can't."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.bus import Bus
    from runtime.roster import Roster

LOOK_S = 0.25
"""How exactly the time of deafness is known: little beside the 5 s that it lasts at least."""
TOO_EARLY_S = 0.001
"""A timer of the loop may come this much before its time."""


class Hearing:
    """A clock that stands while this process is deaf, and for 5 s after it hears again.

    What judges a peer runs on it; what is owed to a client runs on the loop's clock.
    """

    def __init__(self, roster: Roster, bus: Bus) -> None:
        """Needs a running loop; looks now and again until ``close``."""
        self._loop = asyncio.get_running_loop()
        self._roster = roster
        self._bus = bus
        self._heard_s = 0.0
        self._looked = self._loop.time()
        self._deaf = self.deaf
        self._timer = self._loop.call_later(LOOK_S, self._look)

    @property
    def connected(self) -> bool:
        """Whether there is a server just now."""
        return self._bus.connected

    @property
    def deaf(self) -> bool:
        """No peer may be judged now."""
        return not self._bus.connected or self._roster.deaf()

    def heard_s(self) -> float:
        """Seconds since the start in which peers could be heard."""
        now = self._loop.time()
        if not self._deaf:
            self._heard_s += now - self._looked
        self._looked, self._deaf = now, self.deaf
        return self._heard_s

    def timer(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back after so many seconds of hearing, never while deaf."""
        return Timer(self._loop, self.heard_s, seconds, callback, lambda: self.deaf)

    def close(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_S, self._look)
        self.heard_s()


class Timer:
    """Calls back once after ``seconds`` of a clock that may stand now and then, unless cancelled."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        seconds: float,
        callback: Callable[[], None],
        stands: Callable[[], bool] = lambda: False,
    ) -> None:
        """``stands`` says whether the clock stands now."""
        self._loop = loop
        self._clock = clock
        self._due = clock() + seconds
        self._callback = callback
        self._stands = stands
        self._handle = loop.call_later(max(seconds, 0.0), self._look)

    def left_s(self) -> float:
        """Seconds until it calls back; negative if it should have."""
        return self._due - self._clock()

    def cancel(self) -> None:
        """It won't call back. Idempotent."""
        self._handle.cancel()

    def _look(self) -> None:
        left, stands = self.left_s(), self._stands()
        if stands or left > TOO_EARLY_S:
            self._handle = self._loop.call_later(max(left, LOOK_S if stands else TOO_EARLY_S), self._look)
        else:
            self._callback()
