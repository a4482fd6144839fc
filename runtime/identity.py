"""Which process, and which life of it."""

from __future__ import annotations

import secrets
import time

from protocol.messages import Peer
from protocol.subjects import check_process_id


def new_epoch() -> str:
    """Start time in milliseconds and 64 random bits, in hex: the newest start of an id sorts last."""
    return f"{time.time_ns() // 1_000_000:012x}-{secrets.randbits(64):016x}"


def new_peer(process_id: str) -> Peer:
    """This process's identity for its whole life. Raises ``ValueError`` for an id that no subject can hold."""
    return Peer(check_process_id(process_id), new_epoch())
