"""How fast a queue moves."""

from __future__ import annotations

import math
from collections import deque

WINDOW_S = 30.0
"""What moved longer ago tells nothing about now."""
MAX_MOVES = 256
"""Moves remembered: enough to tell a pace."""
LONGEST_S = 60
"""Clients that are told to stay away longer don't come back."""


class Pace:
    """Told of each request that leaves the queue for a worker."""

    def __init__(self) -> None:
        """Nothing has moved."""
        self._moves: deque[float] = deque(maxlen=MAX_MOVES)

    def moved(self, now: float) -> None:
        """One more was started."""
        self._moves.append(now)

    def retry_after_s(self, num_waiting: int, waited_s: float, now: float) -> int:
        """When those who wait now will probably have gone: 1 to 60 s.

        ``waited_s`` is how long the first of them has waited. If nothing moved lately, it will
        probably take as long again.
        """
        while self._moves and now - self._moves[0] > WINDOW_S:
            self._moves.popleft()
        seconds = waited_s
        if self._moves:
            span_s = max(now - self._moves[0], 1.0)
            seconds = num_waiting * span_s / len(self._moves)
        return min(max(math.ceil(seconds), 1), LONGEST_S)
