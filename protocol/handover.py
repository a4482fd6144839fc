"""The states of a hand-over: the same words in code, logs, metrics and docs."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where a hand-over stands. The last four are ends; from any other state it can be cancelled."""

    OFFERED = "offered"
    RESERVED = "reserved"
    GRANTED = "granted"
    SENDING = "sending"
    COMPLETE = "complete"
    ADOPTED = "adopted"
    RELEASED = "released"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    FAILED = "failed"
