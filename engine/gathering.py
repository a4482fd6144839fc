"""Whether a step of few prompt tokens is better put off for milliseconds, since others of its burst are on their way.

A step reads all weights, however few tokens it computes, and who comes while it runs waits for its end. Streams that
share steps end together, and their clients ask again together: one after another comes out of the gateway. Somebody
who asks alone never waits, nor does anybody where prompts come seldom, since few are followed closely then.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from engine.step_clock import StepClock

GAP, MOST_GAP_S = 0.25, 0.02
"""Who comes so many steps' time after the one before, and no more than so many seconds, belongs to its burst."""

LONGEST = 2.5
"""Nobody is put off for more than so many gaps."""

OFTEN = 0.5
"""So many of the latest prompts must have been followed by another of their burst."""

WEIGHT = 0.125
"""Of the latest prompt in that share."""


class Gathering:
    """Told of each prompt that comes and of each step."""

    def __init__(self, clock: StepClock, now: Callable[[], float] = time.monotonic) -> None:
        """``clock`` knows how long steps take; ``now`` gives seconds."""
        self._clock = clock
        self._now = now
        self._latest = self._first = float("-inf")
        self._somebody_waits = False
        self._followed = 0.0

    def arrived(self) -> None:
        """A prompt has come."""
        now, gap_s = self._now(), self._gap_s()
        since_s = now - self._latest
        self._followed += WEIGHT * ((since_s <= gap_s) - self._followed)
        self._latest = now
        # Who came before and still waits so long after has left, or can't be computed yet.
        if not self._somebody_waits or since_s > LONGEST * gap_s:
            self._somebody_waits, self._first = True, now

    def begun(self) -> None:
        """A step computes what has come so far."""
        self._somebody_waits = False

    def wait_s(self) -> float:
        """For how many seconds the next step should wait, 0 if it may begin."""
        if not self._somebody_waits or self._followed < OFTEN:
            return 0.0
        gap_s = self._gap_s()
        return max(0.0, min(self._latest + gap_s, self._first + LONGEST * gap_s) - self._now())

    def _gap_s(self) -> float:
        return min(MOST_GAP_S, GAP * self._clock.step_ms / 1000)
