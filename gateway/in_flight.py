"""What this gateway has sent to workers and their last heartbeat can't know yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocol.messages import Peer


@dataclass(frozen=True, slots=True)
class Share:
    """What one request, or several together, will take of a worker."""

    tokens: int = 0
    blocks: int = 0
    seqs: int = 0


@dataclass(slots=True)
class _Placed:
    share: Share
    accepted_at: float | None = None


class InFlight:
    """A share counts until a heartbeat is heard after its Accepted: from then on the worker counts it."""

    def __init__(self) -> None:
        """Nothing is in flight."""
        self._placed: dict[Peer, dict[str, _Placed]] = {}

    def __len__(self) -> int:
        """Shares remembered, over all workers."""
        return sum(map(len, self._placed.values()))

    def place(self, worker: Peer, request_id: str, share: Share) -> None:
        """It was sent. Replaces an older share of the same request."""
        self._placed.setdefault(worker, {})[request_id] = _Placed(share)

    def accepted(self, worker: Peer, request_id: str, now: float) -> None:
        """The worker answered at ``now``, on the clock of the heartbeats."""
        placed = self._placed.get(worker, {}).get(request_id)
        if placed is not None and placed.accepted_at is None:
            placed.accepted_at = now

    def release(self, worker: Peer, request_id: str) -> None:
        """It isn't there any more. Idempotent."""
        placed = self._placed.get(worker)
        if placed is not None:
            placed.pop(request_id, None)
            if not placed:
                del self._placed[worker]

    def forget(self, worker: Peer) -> None:
        """The worker is gone."""
        self._placed.pop(worker, None)

    def extra(self, worker: Peer, heard: float) -> Share:
        """The sum of what the heartbeat of ``heard`` doesn't contain."""
        placed = self._placed.get(worker, {})
        for request_id in [k for k, p in placed.items() if (p.accepted_at or heard) < heard]:
            self.release(worker, request_id)
        shares = [each.share for each in placed.values()]
        return Share(
            sum(share.tokens for share in shares),
            sum(share.blocks for share in shares),
            sum(share.seqs for share in shares),
        )
