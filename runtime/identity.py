"""Which process, and which life of it."""

from __future__ import annotations

import os
import re
import secrets
import socket
import time

from protocol.messages import Peer
from protocol.subjects import check_process_id, with_role

MAX_HOST_CHARS = 32


def process_id(role: str, name: str) -> str:
    """``name`` with its role in front; without one, host and process id tell workers of many containers apart."""
    host = re.sub("[^A-Za-z0-9]", "", socket.gethostname())[:MAX_HOST_CHARS]
    return with_role(role, name or f"{host}-{os.getpid()}")


def new_epoch() -> str:
    """Start time in milliseconds and 64 random bits, in hex: the newest start of an id sorts last."""
    return f"{time.time_ns() // 1_000_000:012x}-{secrets.randbits(64):016x}"


def new_peer(process_id: str) -> Peer:
    """This process's identity for its whole life. Raises ``ValueError`` for an id that no subject can hold."""
    return Peer(check_process_id(process_id), new_epoch())
