"""Where a request stands, since when, and until when at most."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.hearing import Timer

if TYPE_CHECKING:
    from gateway.hearing import Hearing

QUEUE = "queue"
PREFILL = "prefill"
TRANSFER = "transfer"
DECODE = "decode"
PHASES = (QUEUE, PREFILL, TRANSFER, DECODE)
WHOLE = "request"
"""Not a phase: the deadline that the client or the server has set for all of them together."""


class PhaseClock:
    """One phase at a time, each with a deadline that starts when it is entered.

    Waiting counts together over all attempts, so that a request that is refused again and again
    ends; the other phases start afresh with each attempt, and attempts are bounded.

    Phases that wait for a peer stand still while the bus can't be heard. The whole request's deadline
    never does, nor does the wait of a newcomer: nobody is judged by it.
    """

    def __init__(
        self,
        limits_s: dict[str, float],
        hearing: Hearing,
        on_deadline: Callable[[str], None],
        whole_s: float = 0.0,
    ) -> None:
        """``limits_s`` has seconds for each phase; ``on_deadline`` hears which one took too long.

        ``whole_s`` counts from now, 0 is no limit; ``on_deadline`` hears ``WHOLE`` of it.
        """
        self._loop = asyncio.get_running_loop()
        self._limits_s = limits_s
        self._hearing = hearing
        self._on_deadline = on_deadline
        self._entered = self._loop.time()
        self._timer: Timer | None = None
        self._queue_left_s = limits_s[QUEUE]
        self._queue_patient = False
        self._whole = self._timer_of(whole_s, WHOLE, patient=False) if whole_s else None
        self.phase = ""
        self.spent_s: dict[str, float] = {}

    def enter(self, phase: str) -> None:
        """The phase before ends."""
        self._leave()
        limit = self._queue_left_s if phase == QUEUE else self._limits_s[phase]
        patient = phase != QUEUE or self._queue_patient
        self.phase = phase
        self._entered = self._loop.time()
        self._timer = self._timer_of(limit, phase, patient=patient)

    def begin_again(self) -> None:
        """Its workers gave it up: it may wait as long as a newcomer, and only while peers are heard."""
        self._queue_left_s = self._limits_s[QUEUE]
        self._queue_patient = True

    def stop(self) -> None:
        """No deadline runs any more; ``phase`` stays what it was. Idempotent."""
        self._leave()
        if self._whole is not None:
            self._whole.cancel()

    def left_ms(self, phase: str) -> int:
        """Milliseconds that this phase may still take, 1 at least; all of it if it hasn't begun."""
        left = self._limits_s[phase]
        if phase == self.phase and self._timer is not None:
            left = self._timer.left_s()
        elif phase == QUEUE:
            left = self._queue_left_s
        if self._whole is not None:
            left = min(left, self._whole.left_s())
        return max(int(left * 1000), 1)

    def whole_ends_before(self, phase: str) -> bool:
        """Whether the whole request's deadline leaves this phase less time than its own."""
        if self._whole is None:
            return False
        running = self._timer if phase == self.phase else None
        left_s = running.left_s() if running is not None else self._limits_s[phase]
        return self._whole.left_s() < left_s

    def limit_s(self, phase: str) -> float:
        """Seconds that the phase may take in all."""
        return self._limits_s[phase]

    def _leave(self) -> None:
        timer, self._timer = self._timer, None
        if timer is None:
            return
        timer.cancel()
        if self.phase == QUEUE:
            self._queue_left_s = timer.left_s()
        spent = self._loop.time() - self._entered
        self.spent_s[self.phase] = self.spent_s.get(self.phase, 0.0) + spent

    def _timer_of(self, seconds: float, phase: str, *, patient: bool) -> Timer:
        def late() -> None:
            self._on_deadline(phase)

        if patient:
            return self._hearing.timer(seconds, late)
        return Timer(self._loop, self._loop.time, seconds, late)
