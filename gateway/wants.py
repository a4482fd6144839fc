"""Holds on workers, renewed by name: each second every worker hears what is still wanted of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from protocol.messages import AttemptRef, Wanted

if TYPE_CHECKING:
    from protocol.messages import Peer
    from runtime.postbox import Postbox

MAX_ATTEMPTS_A_MESSAGE = 4096
"""150 KB, under any server's payload limit."""


class Wants:
    """Attempts that workers have accepted and that are still wanted there."""

    def __init__(self, postbox: Postbox, pause_s: float) -> None:
        """Needs a running loop; the timer runs until ``close``."""
        self._loop = asyncio.get_running_loop()
        self._postbox = postbox
        self._pause_s = pause_s
        self._wanted: dict[Peer, dict[str, int]] = {}
        self._timer = self._loop.call_later(pause_s, self._tell)

    def __len__(self) -> int:
        """Holds that are renewed, over all workers."""
        return sum(map(len, self._wanted.values()))

    def add(self, worker: Peer, request_id: str, attempt: int) -> None:
        """``worker`` has accepted this attempt; it replaces an older one of the request."""
        self._wanted.setdefault(worker, {})[request_id] = attempt

    def drop(self, worker: Peer, request_id: str) -> None:
        """Nothing of this request is wanted there any more. Idempotent."""
        wanted = self._wanted.get(worker)
        if wanted is not None:
            wanted.pop(request_id, None)
            if not wanted:
                del self._wanted[worker]

    def forget(self, worker: Peer) -> None:
        """The worker is gone."""
        self._wanted.pop(worker, None)

    def close(self) -> None:
        """Stop renewing."""
        self._timer.cancel()

    def _tell(self) -> None:
        self._timer = self._loop.call_later(self._pause_s, self._tell)
        for worker, wanted in self._wanted.items():
            refs = [AttemptRef(request_id, attempt) for request_id, attempt in wanted.items()]
            for start in range(0, len(refs), MAX_ATTEMPTS_A_MESSAGE):
                batch = tuple(refs[start : start + MAX_ATTEMPTS_A_MESSAGE])
                self._postbox.send(worker, Wanted(batch))
