"""Events of a response in the background: told at once to who asked for it, and kept for who asks for them later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from gateway.choices_answer import KEEPALIVE
from gateway.responses_api.store import MAX_ENTRY_BYTES, ResponseStore

MAX_KEPT_BYTES = 4 << 20
"""Of one response's events: about 16,000 tokens. What comes after isn't told again."""

MAX_UNREAD_BYTES = 256 << 10
"""That wait for who asked for the response; with more its stream ends, and it may go on from what is kept."""

AFTER = b"\n\n"
"""Stands after each event, and in none."""

END, CUT = b": end", b": cut"
"""In place of an event: there are no more, or they aren't kept."""


def part_key(key: str, number: int) -> str:
    """The store's key of a part, counted from 0, of the events of the response under ``key``."""
    return f"{key}:events:{number}"


async def drop_parts(store: ResponseStore, key: str) -> None:
    """Forget the events of a response. Raises ``StoreAway``."""
    number = 0
    while await store.drop(part_key(key, number)):
        number += 1


class EventLog:
    """Of one response, while it runs. Belongs to one event loop."""

    def __init__(self, store: ResponseStore, key: str) -> None:
        """Keep in ``store`` what comes, whenever it is told to."""
        self._store = store
        self._key = key
        self._num_parts = 0
        self._part_bytes = 0
        self._num_bytes = 0
        self._waiting = bytearray()
        self._is_cut = False
        self._unread = bytearray()
        self._lags = False
        self._over = False
        self._news = asyncio.Event()
        self._writing = asyncio.Lock()

    def put(self, events: bytes) -> None:
        """Tell them, and keep them with the next ``flush``."""
        self._keep(events)
        if not self._lags:
            self._unread += events
            self._lags = len(self._unread) > MAX_UNREAD_BYTES
        if self._lags:
            self._unread.clear()
        self._news.set()

    def end(self) -> None:
        """Nothing more comes."""
        self._keep(END + AFTER)
        self._over = True
        self._news.set()

    def nudge(self) -> None:
        """Let a live stream say something, if only that it is there."""
        self._news.set()

    async def flush(self) -> None:
        """Keep what isn't yet. Raises ``StoreAway``: then it stays for the next time.

        The same part is tried again then, no longer than before: it may be there, and may have been read.
        """
        async with self._writing:
            while part := bytes(self._waiting[: self._part_bytes or MAX_ENTRY_BYTES]):
                self._part_bytes = len(part)
                await self._store.put(part_key(self._key, self._num_parts), part)
                self._num_parts += 1
                self._part_bytes = 0
                del self._waiting[: len(part)]

    async def drop(self) -> None:
        """Forget all of them, and keep no more. Raises ``StoreAway``."""
        async with self._writing:
            self._is_cut = True
            self._waiting.clear()
            for number in range(self._num_parts + 1):  # one may have been stored, though nobody said so
                await self._store.drop(part_key(self._key, number))

    async def live(self) -> AsyncIterator[bytes]:
        """Events as they come, for one reader; they end early if it lags."""
        while not self._lags:
            if self._unread:
                told = bytes(self._unread)
                self._unread.clear()
                yield told
            elif self._over:
                return
            else:
                self._news.clear()
                await self._news.wait()
                if not self._unread and not self._over:
                    yield KEEPALIVE

    def _keep(self, events: bytes) -> None:
        if self._is_cut:
            return
        if self._num_bytes + len(events) > MAX_KEPT_BYTES:
            self._is_cut, events = True, CUT + AFTER
        self._num_bytes += len(events)
        self._waiting += events
