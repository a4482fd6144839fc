"""A process group's store without a server: what one rank sets is told to the other on the bus."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch.distributed.distributed_c10d import Store

MAX_KEYS = 64
MAX_KEY_CHARS = 256
MAX_VALUE_BYTES = 16 << 10
"""A backend sets an address or two, of some hundred bytes."""


class StoreError(RuntimeError):
    """The other rank's word didn't come, or can't be taken."""


class BusStore(Store):
    """Called by a backend in its own threads, and by ``hear`` on the event loop. Holds few and short entries.

    Backends need only what is here: each rank sets its address, and gets the other's. Counters (``add``), which
    need one place for both, aren't built; torch raises for them.
    """

    def __init__(self, tell: Callable[[str, bytes], None], within_s: float) -> None:
        """``tell(key, value)`` sends an entry to the other rank, from any thread. ``get`` waits so many seconds."""
        super().__init__()
        self._tell = tell
        self._within_s = within_s
        self._mine: dict[str, bytes] = {}
        self._theirs: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._over = ""
        self._is_sealed = False

    def hear(self, key: str, value: bytes) -> None:
        """The other rank has set ``key``. Raises ``StoreError`` for more than a backend needs."""
        if len(key) > MAX_KEY_CHARS or len(value) > MAX_VALUE_BYTES or len(self._theirs) >= MAX_KEYS:
            raise StoreError(
                f"an entry of {len(value)} bytes under a key of {len(key)}, with {len(self._theirs)} there already"
            )
        with self._changed:
            if not self._is_sealed:
                self._theirs[key] = value
                self._changed.notify_all()

    def meet(self, rank: int) -> None:
        """Return when both ranks are here: backends may wait for the other without end. Raises ``StoreError``."""
        self.set(f"here/{rank}", b"1")
        self.wait([f"here/{1 - rank}"])

    def seal(self) -> None:
        """Both ranks have joined: from now on nothing is heard or told. What NCCL sets when it fails stays here."""
        with self._changed:
            self._is_sealed = True

    def give_up(self, reason: str) -> None:
        """Whoever waits for an entry, or sets one, does so in vain."""
        with self._changed:
            self._over = reason
            self._changed.notify_all()

    def set(self, key: str, value: bytes | str) -> None:
        """An entry of this rank. Raises ``StoreError`` once all is over."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        with self._changed:
            if self._over:
                raise StoreError(self._over)
            self._mine[key] = data
            self._changed.notify_all()
            is_sealed = self._is_sealed
        if not is_sealed:
            self._tell(key, data)

    def get(self, key: str) -> bytes:
        """The entry of either rank, once it is there. Raises ``StoreError``."""
        self.wait([key])
        with self._changed:
            return self._mine[key] if key in self._mine else self._theirs[key]

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
        return all(key in self._mine or key in self._theirs for key in keys)
