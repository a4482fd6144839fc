"""Deadlines of what is held here for others: renewed by name, judged on this process's own clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from protocol.messages import Key
from runtime.logs import get_logger

HOLD_S = 5.0
"""A hold that nobody asked for this long is let go."""
CHECK_S = 0.5

log = get_logger("holds")


class Holds:
    """Attempts held here; one that isn't renewed within ``hold_s`` expires, whatever else happens.

    While the bus can't be heard nothing expires (``frozen``), since then nobody could have renewed.
    """

    def __init__(self, on_expired: Callable[[Key], None], frozen: Callable[[], bool], hold_s: float = HOLD_S) -> None:
        """Needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._on_expired = on_expired
        self._frozen = frozen
        self._hold_s = hold_s
        self._renewed: dict[Key, float] = {}
        self._started: dict[Key, float] = {}
        self._timer = self._loop.call_later(CHECK_S, self._check)

    def add(self, key: Key) -> None:
        """Hold from now on."""
        self._renewed[key] = self._loop.time()
        self._started.setdefault(key, self._loop.time())

    def renew(self, key: Key) -> bool:
        """Its owner still wants it. False if it isn't held."""
        if key not in self._renewed:
            return False
        self._renewed[key] = self._loop.time()
        return True

    def drop(self, key: Key) -> None:
        """It isn't held any more. Idempotent."""
        self._renewed.pop(key, None)
        self._started.pop(key, None)

    def ages_s(self) -> dict[Key, float]:
        """Seconds since each hold began."""
        now = self._loop.time()
        return {key: now - started for key, started in self._started.items()}

    def close(self) -> None:
        """Stop judging."""
        self._timer.cancel()

    def _check(self) -> None:
        self._timer = self._loop.call_later(CHECK_S, self._check)
        now = self._loop.time()
        if self._frozen():
            self._renewed = dict.fromkeys(self._renewed, now)
            return
        for key in [k for k, at in self._renewed.items() if now - at > self._hold_s]:
            log.warning("hold_expired", request_id=key[0], attempt=key[1])
            self.drop(key)
            self._on_expired(key)
