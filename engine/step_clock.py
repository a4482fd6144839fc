"""How long steps take, and how long the device has nothing to compute between two of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

WEIGHT = 0.05
"""Of the latest step in the running means: about the last twenty count."""


class StepClock:
    """Told when the model begins and ends, and what lies between: waiting by agreement is no gap, nor is idling."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """``now`` gives seconds."""
        self._now = now
        self._begun = self._ended = self._waited = 0.0
        self.step_ms = self.step_gap_ms = 0.0
        """Running means, in milliseconds: the model's part of a step, and from there to the next one's."""

    def begin(self) -> None:
        """The model begins to compute a step."""
        self._begun = self._now()
        if self._ended:
            self.step_gap_ms = _mean(self.step_gap_ms, (self._begun - self._ended - self._waited) * 1000)
        self._waited = 0.0

    def end(self) -> None:
        """The step's logits are there."""
        self._ended = self._now()
        self.step_ms = _mean(self.step_ms, (self._ended - self._begun) * 1000)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """What is done meanwhile lets others compute: it counts as no gap."""
        before = self._now()
        yield
        self._waited += self._now() - before

    def rest(self) -> None:
        """There is no work: what follows is no gap."""
        self._ended = 0.0


def _mean(mean: float, value: float) -> float:
    return mean + WEIGHT * (value - mean) if mean else value
