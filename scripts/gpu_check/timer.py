"""Times what a device does."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

WARM_UPS = 3
LEAST, MOST = 5, 25
"""How often something is timed: often where it is short."""

SPENT_MS = 400.0
"""On one figure."""

FLUSHED_BYTES = 1 << 30
"""Read before each time: ten times the largest cache, which is left without anything that must still be written to
memory. It takes so long that all launches are queued meanwhile."""


class Timer:
    """Measures on one device: a card's time between two events, on a CPU that of the host."""

    def __init__(self, device: torch.device) -> None:
        """Make none of its memory yet."""
        self._device = device
        self._flushed: torch.Tensor | None = None

    def ms(self, work: Callable[[], object]) -> float:
        """Milliseconds of ``work``, the median of several; it finds nothing of its own in the card's cache.

        On a CPU it is done once.
        """
        if self._device.type != "cuda":
            begin = time.perf_counter()
            work()
            return (time.perf_counter() - begin) * 1e3
        for _ in range(WARM_UPS - 1):
            work()
        once = self._once(work)
        times = [self._once(work) for _ in range(min(MOST, max(LEAST, int(SPENT_MS / max(once, 1e-3)))))]
        return statistics.median(times)

    def host_ms(self, work: Callable[[], object]) -> float:
        """The same of work on several cards, as the host sees it."""
        times = []
        for _ in range(WARM_UPS + LEAST):
            begin = time.perf_counter()
            work()
            for card in range(torch.cuda.device_count()):
                torch.cuda.synchronize(card)
            times.append((time.perf_counter() - begin) * 1e3)
        return statistics.median(times[WARM_UPS:])

    def _once(self, work: Callable[[], object]) -> float:
        if self._flushed is None:
            self._flushed = torch.zeros(FLUSHED_BYTES // 4, device=self._device)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(self._device)
        self._flushed.sum()
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))
