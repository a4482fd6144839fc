"""Attempts that have ended, remembered long enough that nothing late starts them again."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

REMEMBER_S = 60.0
MAX_REMEMBERED = 100_000
"""A bound in count beside the one in time: at 100 bytes each, 10 MB."""


class EndedAttempts:
    """Per request the highest attempt that ended here, for a minute."""

    def __init__(self) -> None:
        """Needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._ended: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def add(self, request_id: str, attempt: int) -> None:
        """This attempt and all before it are over."""
        before = self._ended.pop(request_id, (0, 0.0))[0]
        self._ended[request_id] = (max(before, attempt), self._loop.time())
        self._forget()

    def __contains__(self, key: tuple[str, int]) -> bool:
        """Whether (request_id, attempt) is over."""
        request_id, attempt = key
        return attempt <= self._ended.get(request_id, (-1, 0.0))[0]

    def _forget(self) -> None:
        horizon = self._loop.time() - REMEMBER_S
        while self._ended:
            request_id, (_, when) = next(iter(self._ended.items()))
            if when > horizon and len(self._ended) <= MAX_REMEMBERED:
                return
            del self._ended[request_id]
