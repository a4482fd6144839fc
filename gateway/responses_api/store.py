"""Where responses are kept for a while: what every store promises, and the one in this process's memory."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

DEFAULT_TTL_S = 6 * 3600.0
DEFAULT_MAX_BYTES = 64 << 20

MAX_ENTRY_BYTES = 1 << 20
"""Of one response with the conversation before it; a longer one isn't kept."""

LEASE_S = 15.0
"""How long a response counts as running after its gateway last said so."""


class StoreAway(Exception):  # noqa: N818 - it says what happened
    """The store can't be asked now; one line that says why."""


class ResponseStore(Protocol):
    """Keeps bytes under keys for a fixed time, within a fixed size: the oldest go first where there is no room.

    Beside an entry there may be its lease, while somebody works on it. Every call raises ``StoreAway``.
    """

    async def put(self, key: str, entry: bytes) -> None:
        """Keep it, in place of what is there; its time begins anew."""

    async def get(self, key: str) -> bytes | None:
        """What is kept."""

    async def drop(self, key: str) -> bool:
        """Forget it and its lease; whether it was there."""

    async def lease(self, key: str) -> None:
        """Somebody works on it from now."""

    async def renew(self, key: str) -> bool:
        """Somebody still does: for ``LEASE_S`` more. False if the lease is gone; then the work must end."""

    async def end(self, key: str) -> bool:
        """Nobody works on it any more; whether somebody did."""

    async def is_leased(self, key: str) -> bool:
        """Whether somebody works on it."""

    async def close(self) -> None:
        """Let go of connections."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """``until`` is a time of our clock, in seconds."""

    entry: bytes
    until: float


class MemoryStore:
    """A ``ResponseStore``; never away, and gone with its process."""

    def __init__(
        self,
        ttl_s: float = DEFAULT_TTL_S,
        max_bytes: int = DEFAULT_MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ttl_s = ttl_s
        self._max_bytes = max_bytes
        self._clock = clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # by their end, since all last equally long
        self._leases: dict[str, float] = {}
        self.num_bytes = 0

    async def put(self, key: str, entry: bytes) -> None:
        """See ``ResponseStore``."""
        self._forget(key)
        now = self._clock()
        while self._entries:
            oldest = next(iter(self._entries))
            if self._entries[oldest].until > now and self.num_bytes + len(entry) <= self._max_bytes:
                break
            self._forget(oldest)
        self._entries[key] = _Entry(entry, now + self._ttl_s)
        self.num_bytes += len(entry)

    async def get(self, key: str) -> bytes | None:
        """See ``ResponseStore``."""
        kept = self._entries.get(key)
        return kept.entry if kept is not None and kept.until > self._clock() else None

    async def drop(self, key: str) -> bool:
        """See ``ResponseStore``."""
        was_there = await self.get(key) is not None
        self._forget(key)
        self._leases.pop(key, None)
        return was_there

    async def lease(self, key: str) -> None:
        """See ``ResponseStore``."""
        self._leases[key] = self._clock() + LEASE_S

    async def renew(self, key: str) -> bool:
        """See ``ResponseStore``."""
        if not await self.is_leased(key):
            return False
        await self.lease(key)
        return True

    async def end(self, key: str) -> bool:
        """See ``ResponseStore``."""
        was_leased = await self.is_leased(key)
        self._leases.pop(key, None)
        return was_leased

    async def is_leased(self, key: str) -> bool:
        """See ``ResponseStore``."""
        return self._leases.get(key, 0.0) > self._clock()

    async def close(self) -> None:
        """See ``ResponseStore``."""

    def _forget(self, key: str) -> None:
        kept = self._entries.pop(key, None)
        if kept is not None:
            self.num_bytes -= len(kept.entry)
