"""How much of the cores other programs took while something was measured."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_BUSY = (0, 1, 2, 5, 6)
"""Fields of the first line: user, nice, system, irq, softirq. Source: proc_stat(5)."""


class Others:
    """Counts from its making on."""

    def __init__(self) -> None:
        self._start_s, self._start_busy_s = time.monotonic(), _busy_s()

    def share(self) -> float | None:
        """Return the share of all cores' time that went to other processes, None where that can't be told."""
        busy_s = _busy_s()
        if busy_s is None or self._start_busy_s is None:
            return None
        passed_s = (time.monotonic() - self._start_s) * (os.cpu_count() or 1)
        return max(busy_s - self._start_busy_s, 0.0) / passed_s if passed_s else 0.0


def _busy_s() -> float | None:
    """Seconds that the cores have worked for others than this process, since the machine started."""
    if not _STAT.is_file():
        return None
    fields = [int(word) for word in _STAT.read_text(encoding="ascii").splitlines()[0].split()[1:]]
    return sum(fields[place] for place in _BUSY) / os.sysconf("SC_CLK_TCK") - time.process_time()
