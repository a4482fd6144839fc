"""Subjects on the bus. Each process has one inbox; contents travel on a subject of their own."""

from __future__ import annotations

PREFIX = "kvferry"
HEARTBEATS = f"{PREFIX}.heartbeat"


def inbox(process_id: str) -> str:
    """Control messages to one worker or gateway."""
    return f"{PREFIX}.inbox.{process_id}"


def contents(worker_id: str) -> str:
    """Block contents to one decode worker."""
    return f"{PREFIX}.contents.{worker_id}"


def check_process_id(text: str) -> str:
    """``text`` if it can be one part of a subject; raises ``ValueError`` otherwise."""
    ok = 0 < len(text) <= 64 and all(c.isascii() and (c.isalnum() or c in "-_") for c in text)
    if not ok:
        raise ValueError(f"{text!r} is no worker id: 1 to 64 letters, digits, '-' or '_'")
    return text
