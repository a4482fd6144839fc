"""Subjects on the bus. Each process has one inbox; contents travel on a subject of their own.

The role of a process is a part of its subjects, so that a broker can permit each role its own subjects alone.
"""

from __future__ import annotations

PREFIX = "kvferry"
ROLES = ("gateway", "prefill", "decode")
OTHER = "other"
"""The role of an operator's tool, and of whatever has no role in its id."""

HEARTBEATS = f"{PREFIX}.heartbeat.*"
"""Everybody's; see `heartbeat`."""


def role_of(process_id: str) -> str:
    """What a process is by its id, ``ROLE-NAME``."""
    role = process_id.partition("-")[0]
    return role if role in ROLES else OTHER


def with_role(role: str, name: str) -> str:
    """The process id of ``name``, which may begin with the role already."""
    return name if role_of(name) == role else f"{role}-{name}"


def heartbeat(process_id: str) -> str:
    """The subject of one process's own status messages."""
    return f"{PREFIX}.heartbeat.{role_of(process_id)}"


def inbox(process_id: str, sender_role: str = "*") -> str:
    """Control messages to one worker or gateway from processes of one role; without it what the receiver listens to."""
    return f"{PREFIX}.inbox.{role_of(process_id)}.{process_id}.{sender_role}"


def contents(worker_id: str) -> str:
    """Block contents to one decode worker."""
    return f"{PREFIX}.contents.{worker_id}"


def check_process_id(text: str) -> str:
    """``text`` if it can be one part of a subject; raises ``ValueError`` otherwise."""
    ok = 0 < len(text) <= 64 and all(c.isascii() and (c.isalnum() or c in "-_") for c in text)
    if not ok:
        raise ValueError(f"{text!r} is no worker id: 1 to 64 letters, digits, '-' or '_'")
    return text
