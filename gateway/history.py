"""What a request has met so far, as far as routing cares."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protocol.messages import Peer


@dataclass(slots=True)
class History:
    """One a request.

    ``refusals``: when and why a worker refused it, or gave it back. ``failed``: workers that failed it.
    ``gave_back``: the last one that gave it back whole. ``prefer``: workers that can go on with what they
    have. ``numerics``: of the workers that made its tokens. ``crashed``: lives that ended unasked while
    they computed it.
    """

    refusals: dict[Peer, tuple[float, str]] = field(default_factory=dict)
    failed: set[Peer] = field(default_factory=set)
    gave_back: Peer | None = None
    prefer: set[Peer] = field(default_factory=set)
    numerics: set[str] = field(default_factory=set)
    crashed: set[Peer] = field(default_factory=set)

    def avoids(self, worker: Peer) -> bool:
        """Whether others are better, if there are any."""
        return worker in self.failed or worker == self.gave_back

    def is_alike(self, numerics: str) -> bool:
        """Whether tokens come out the same, bit for bit."""
        return not self.numerics or numerics in self.numerics
