"""Updates on their way from a request to its one reader."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.errors import GatewayError
    from gateway.generation import Update


class Mailbox:
    """Filled and emptied on one loop; bounded by the request's own tokens."""

    def __init__(self) -> None:
        """Open and empty."""
        self._updates: deque[Update] = deque()
        self._news = asyncio.Event()
        self._error: GatewayError | None = None
        self._closed = False

    def put(self, update: Update) -> None:
        """Hand over at once: a waiting reader runs in this turn of the loop."""
        self._updates.append(update)
        self._news.set()

    def drop(self, choice: int) -> None:
        """The reader wants no more of this choice."""
        self._updates = deque(update for update in self._updates if update.choice != choice)

    def close(self, error: GatewayError | None) -> None:
        """Nothing more comes; the reader gets what is here, and then the error if there is one."""
        self._closed = True
        self._error = error
        self._news.set()

    async def next(self) -> Update | None:
        """The next update, ``None`` after the last one. Raises the error that ended the request."""
        while not self._updates:
            if self._error is not None:
                raise self._error
            if self._closed:
                return None
            self._news.clear()
            await self._news.wait()
        return self._updates.popleft()
