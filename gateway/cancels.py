"""Cancels that outlive their requests: repeated until the worker has released everything, or is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.messages import Cancel, Peer, Released
from runtime.logs import get_logger

if TYPE_CHECKING:
    from gateway.hearing import Hearing
    from runtime.postbox import Postbox
    from runtime.repeats import Repeats
    from runtime.roster import Roster

log = get_logger("gateway.cancels")


class Cancels:
    """One open Cancel per worker and request, of the highest attempt that is to end there."""

    def __init__(self, postbox: Postbox, roster: Roster, repeats: Repeats, hearing: Hearing, within_s: float) -> None:
        """Takes over Released of the postbox."""
        self._postbox = postbox
        self._roster = roster
        self._repeats = repeats
        self._hearing = hearing
        self._within_s = within_s
        self._open: dict[tuple[Peer, str], int] = {}
        postbox.on(Released, self._released)

    def __len__(self) -> int:
        """Cancels without an answer."""
        return len(self._open)

    def cancel(self, worker: Peer, request_id: str, attempt: int, reason: str) -> None:
        """End this attempt and all before it on ``worker``; nothing if it's dead."""
        if self._roster.member(worker) is None:
            return
        key = (worker, request_id)
        attempt = max(attempt, self._open.get(key, 0))
        self._open[key] = attempt
        self._repeat(worker, Cancel(request_id, attempt, reason))

    def forget(self, worker: Peer) -> None:
        """The worker is gone, and its holds with it."""
        for key in [key for key in self._open if key[0] == worker]:
            self._close(key)

    def _released(self, sender: Peer, message: Released) -> None:
        key = (sender, message.request_id)
        if message.attempt >= self._open.get(key, message.attempt + 1):
            self._close(key)

    def _repeat(self, worker: Peer, message: Cancel) -> None:
        self._repeats.start(
            ("cancel", worker, message.request_id),
            lambda: self._postbox.send(worker, message),
            self._within_s,
            lambda: self._give_up(worker, message),
        )

    def _give_up(self, worker: Peer, message: Cancel) -> None:
        """Its hold has expired by now, unless neither side could hear the other."""
        if self._hearing.deaf:
            self._repeat(worker, message)
            return
        log.warning("cancel_unanswered", worker=worker.id, request_id=message.request_id)
        self._close((worker, message.request_id))

    def _close(self, key: tuple[Peer, str]) -> None:
        self._open.pop(key, None)
        self._repeats.stop(("cancel", *key))
