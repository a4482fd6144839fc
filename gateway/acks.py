"""Acks: what was accepted, collected for some milliseconds and sent in one message a worker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from protocol.messages import Ack, AckItem, Cancel

if TYPE_CHECKING:
    from protocol.messages import Peer, TokenEvent
    from runtime.postbox import Postbox

PAST_ALL = 2**31 - 1
"""More than any choice's tokens: acknowledges everything, the end included."""
ALONE = 2.0
"""Pauses until acks go without being asked. Before that they go with tokens that come: the process is awake then."""
MAX_ITEMS = 1024
"""Items of one message: 50 KB, under any server's payload limit."""

Item = tuple[str, int, int]


class Acks:
    """Each event notes its choice; a lost Ack heals, since the emitter's repetition notes it again."""

    def __init__(self, postbox: Postbox, pause_s: float) -> None:
        """Needs a running loop. Nothing runs while nothing is to be said."""
        self._loop = asyncio.get_running_loop()
        self._postbox = postbox
        self._pause_s = pause_s
        self._noted: dict[Peer, dict[Item, int]] = {}
        self._strays: dict[Peer, set[tuple[str, int]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._ripe_at = 0.0

    def __len__(self) -> int:
        """Choices that wait for the next message."""
        return sum(map(len, self._noted.values())) + sum(map(len, self._strays.values()))

    def note(self, worker: Peer, request_id: str, attempt: int, choice: int, next_index: int) -> None:
        """Tokens below ``next_index`` need not be kept by ``worker`` any more."""
        items = self._noted.setdefault(worker, {})
        key = (request_id, attempt, choice)
        items[key] = max(next_index, items.get(key, 0))
        self._plan()

    def past_all(self, worker: Peer, event: TokenEvent, *, cancel: bool) -> None:
        """An event of an attempt that is over: its emitter may stop, and is told to with ``cancel``."""
        if cancel:
            self._strays.setdefault(worker, set()).add((event.request_id, event.attempt))
        self.note(worker, event.request_id, event.attempt, event.choice, PAST_ALL)

    def forget(self, worker: Peer) -> None:
        """The worker is gone."""
        self._noted.pop(worker, None)
        self._strays.pop(worker, None)

    def flush_ripe(self) -> None:
        """Send what waits if that is long enough; asked whenever tokens have come."""
        if self._timer is not None and self._loop.time() >= self._ripe_at:
            self.flush()

    def flush(self) -> None:
        """Send what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for worker, noted in self._noted.items():
            items = [AckItem(*key, next_index) for key, next_index in noted.items()]
            for start in range(0, len(items), MAX_ITEMS):
                self._postbox.send(worker, Ack(tuple(items[start : start + MAX_ITEMS])))
        for worker, attempts in self._strays.items():
            for request_id, attempt in attempts:
                self._postbox.send(worker, Cancel(request_id, attempt, "the attempt is over"))
        self._noted.clear()
        self._strays.clear()

    def _plan(self) -> None:
        if self._timer is None:
            self._ripe_at = self._loop.time() + self._pause_s
            self._timer = self._loop.call_later(self._pause_s * ALONE, self.flush)
