"""Who speaks on the bus, and about which try of which request."""

from __future__ import annotations

from dataclasses import dataclass

Key = tuple[str, int]
"""(request_id, attempt): one try of one request, as a key."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One life of one process: its id, and the epoch that tells its starts apart. "" is nobody."""

    id: str = ""
    epoch: str = ""


@dataclass(frozen=True, slots=True)
class Envelope:
    """Who sent a frame, and which life of the receiver it is for ("" = any, for broadcasts)."""

    sender: Peer
    to_epoch: str


@dataclass(frozen=True, slots=True)
class AttemptRef:
    """One try of one request."""

    request_id: str
    attempt: int
