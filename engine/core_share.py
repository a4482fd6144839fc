"""Whether a decode step beside prefill is better off with its share of the cores or with all of them, found by trying.

Decode reads memory most of its time. Where one core reads as fast as all do, the others are better left to prefill;
where each has a rate of its own, a step with all of them takes as many core-seconds, and streams wait less.
"""

from __future__ import annotations

import statistics

TRIES = 3
"""Steps in a row on either, of which the medians are compared."""

PERIOD = 96
"""Steps after which both are tried again."""

WASTE = 1.05
"""With all cores a step may take so many times the core-seconds that it takes on its share: no more, but for noise."""


class CoreShare:
    """One worker's finding. Told of steps beside prefill alone."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._num_steps = 0
        self._found_all = False
        self._share: list[int] = []
        self._all: list[int] = []

    @property
    def takes_all(self) -> bool:
        """Whether the next step takes all cores."""
        place = self._num_steps % PERIOD
        if place < 2 * TRIES:
            return place >= TRIES
        return self._found_all

    def learn(self, took_ns: int, num_threads: int) -> None:
        """The step took so long on so many threads."""
        place = self._num_steps % PERIOD
        self._num_steps += 1
        if place < TRIES:
            self._share.append(took_ns * num_threads)
        elif place < 2 * TRIES:
            self._all.append(took_ns * num_threads)
        if place == 2 * TRIES - 1:
            self._found_all = statistics.median(self._all) <= WASTE * statistics.median(self._share)
            self._share.clear()
            self._all.clear()
