"""This process's own heartbeat: each second to everyone, and a copy of a worker's to the store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from protocol.codec import encode
from protocol.messages import Envelope, GatewayStatus, WorkerStatus
from runtime.bus import CLOSE_LINGER_S
from runtime.postbox import Postbox
from runtime.roster import BEAT_S
from runtime.roster_store import RosterStore
from runtime.tasks import spawn

STORE_TTL_S = 5.0
"""As long as silence takes to be death."""


class Heartbeat:
    """Sends ``status()`` each second; ``beat()`` sends one at once when something changed."""

    def __init__(
        self,
        postbox: Postbox,
        status: Callable[[], WorkerStatus | GatewayStatus],
        store: RosterStore | None = None,
    ) -> None:
        """Needs a running loop; begins with ``start``."""
        self._postbox = postbox
        self._status = status
        self._store = store
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to beat."""
        self._task = spawn(self._run(), "heartbeat")

    def beat(self) -> None:
        """One beat now."""
        self._postbox.broadcast(self._status())

    async def stop(self) -> None:
        """The last beat says what the state is now ("leaving"), and the store forgets this process."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        self.beat()
        with contextlib.suppress(TimeoutError):  # while the bus is away nobody hears last words
            async with asyncio.timeout(CLOSE_LINGER_S):
                await self._postbox.bus.drain()
        if self._store is not None:
            await self._store.remove(self._postbox.me.id)

    async def _run(self) -> None:
        while True:
            status = self._status()
            self._postbox.broadcast(status)
            if self._store is not None:
                frame = encode(Envelope(self._postbox.me, ""), status)
                await self._store.put(self._postbox.me.id, frame, STORE_TTL_S)
            await asyncio.sleep(BEAT_S)
