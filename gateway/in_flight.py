"""What this gateway knows of a worker's load and the worker's last heartbeat can't know yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocol.messages import Peer

MAX_FREED = 1024
"""Shares that ended since a worker's last heartbeat; the oldest is forgotten first."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one request, or several together, take of a worker."""

    tokens: int = 0
    blocks: int = 0
    seqs: int = 0


@dataclass(slots=True)
class _Placed:
    share: Share
    accepted_at: float | None = None


@dataclass(slots=True)
class _Load:
    """``new`` shares aren't in the last heartbeat, ``counted`` ones are; ``freed`` ones are no more."""

    new: dict[str, _Placed] = field(default_factory=dict)
    counted: dict[str, Share] = field(default_factory=dict)
    freed: deque[tuple[float, Share]] = field(default_factory=lambda: deque(maxlen=MAX_FREED))


class InFlight:
    """A share counts here until a heartbeat comes after its Accepted, then the worker counts it.

    One that ends afterwards is taken off until the next heartbeat: without that, room would be seen
    a second late.
    """

    def __init__(self) -> None:
        """Nothing is in flight."""
        self._loads: dict[Peer, _Load] = {}

    def __len__(self) -> int:
        """Shares that haven't ended, over all workers."""
        return sum(len(load.new) + len(load.counted) for load in self._loads.values())

    def place(self, worker: Peer, request_id: str, share: Share) -> None:
        """It was sent."""
        self._loads.setdefault(worker, _Load()).new[request_id] = _Placed(share)

    def accepted(self, worker: Peer, request_id: str, now: float) -> None:
        """The worker answered at ``now``, on the clock of the heartbeats."""
        load = self._loads.get(worker)
        placed = load.new.get(request_id) if load is not None else None
        if placed is not None and placed.accepted_at is None:
            placed.accepted_at = now

    def release(self, worker: Peer, request_id: str, now: float) -> None:
        """It isn't there any more. Idempotent."""
        load = self._loads.get(worker)
        if load is None:
            return
        load.new.pop(request_id, None)
        share = load.counted.pop(request_id, None)
        if share is not None:
            load.freed.append((now, share))

    def forget(self, worker: Peer) -> None:
        """The worker is gone."""
        self._loads.pop(worker, None)

    def extra(self, worker: Peer, heard: float) -> Share:
        """What to add to the heartbeat of ``heard``; negative where more ended than began since."""
        load = self._loads.get(worker)
        if load is None:
            return Share()
        for request_id, placed in list(load.new.items()):
            if placed.accepted_at is not None and placed.accepted_at < heard:
                load.counted[request_id] = placed.share
                del load.new[request_id]
        while load.freed and load.freed[0][0] < heard:
            load.freed.popleft()
        began = _sum(placed.share for placed in load.new.values())
        ended = _sum(share for _, share in load.freed)
        return Share(began.tokens - ended.tokens, began.blocks - ended.blocks, began.seqs - ended.seqs)


def _sum(shares: Iterable[Share]) -> Share:
    tokens = blocks = seqs = 0
    for share in shares:
        tokens, blocks, seqs = tokens + share.tokens, blocks + share.blocks, seqs + share.seqs
    return Share(tokens, blocks, seqs)
