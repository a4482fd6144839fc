"""A process group's store without a server: what one rank sets is told to the other on the bus."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch.distributed.distributed_c10d import Store

MAX_KEYS = 64
MAX_VALUE_BYTES = 16 << 10
"""A backend sets an address or two, of some hundred bytes."""


class StoreError(RuntimeError):
    """The other rank's word didn't come, or can't be taken."""


class BusStore(Store):
    """Called by a backend in its own thread, and by ``hear`` on the event loop. Holds few and short entries.

    Backends need only what is here: each rank sets its address, and gets the other's. Counters (``add``), which
    need one place for both, aren't built; torch raises for them.
    """

    def __init__(self, tell: Callable[[str, bytes], None], within_s: float) -> None:
        """``tell(key, value)`` sends an entry to the other rank, from any thread. ``get`` waits so many seconds."""
        super().__init__()
        self._tell = tell
        self._within_s = within_s
        self._entries: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._over = ""

    def hear(self, key: str, value: bytes) -> None:
        """The other rank has set ``key``. Raises ``StoreError`` for more than a backend needs."""
        if len(value) > MAX_VALUE_BYTES or len(self._entries) >= MAX_KEYS:
            raise StoreError(f"an entry of {len(value)} bytes, with {len(self._entries)} there already")
        with self._changed:
            self._entries[key] = value
            self._changed.notify_all()

    def give_up(self, reason: str) -> None:
        """Whoever waits for an entry waits in vain."""
        with self._changed:
            self._over = reason
            self._changed.notify_all()

    def set(self, key: str, value: bytes | str) -> None:
        """An entry of this rank."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        with self._changed:
            self._entries[key] = data
            self._changed.notify_all()
        self._tell(key, data)

    def get(self, key: str) -> bytes:
        """The entry of either rank, once it is there. Raises ``StoreError``."""
        self.wait([key])
        return self._entries[key]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Return when all are there, within the shorter of both times. Raises ``StoreError``."""
        within_s = self._within_s if timeout is None else min(self._within_s, timeout.total_seconds())
        end = time.monotonic() + within_s
        with self._changed:
            while not self.check(keys):
                left = end - time.monotonic()
                if self._over or left <= 0.0:
                    raise StoreError(self._over or "the other rank didn't join in time")
                self._changed.wait(left)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all are there."""
        return all(key in self._entries for key in keys)
