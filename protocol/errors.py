"""The errors of the wire: one tree, and one table from code to HTTP status."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class WireError(Exception):
    """A frame that can't be read: wrong version, tag, field or size. Nothing of it is used."""


class Code(StrEnum):
    """Why a request, or one attempt at it, didn't go on.

    ``drained`` and ``preempted`` give a sequence back whole: it is moved at once, and no fault of its own.
    ``worker_crashed`` names the requests that were in the step in which an engine ended unasked.
    """

    BAD_REQUEST = "bad_request"
    TOO_LONG = "context_length_exceeded"
    NEVER_FITS = "never_fits"
    QUEUE_FULL = "queue_full"
    NO_SPACE = "no_space"
    NO_WORKER = "no_worker"
    DRAINING = "draining"
    MISMATCH = "mismatch"
    UNKNOWN = "unknown"
    WORKER_LOST = "worker_lost"
    TRANSFER = "transfer_failed"
    DEADLINE = "deadline_exceeded"
    CANCELLED = "cancelled"
    DRAINED = "drained"
    PREEMPTED = "preempted"
    CRASHED = "worker_crashed"
    ENGINE = "engine_failed"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a code says to an HTTP client. ``again``: the same request may succeed later or elsewhere."""

    status: int
    type: str
    again: bool


MEANINGS: dict[Code, Meaning] = {
    Code.BAD_REQUEST: Meaning(400, "invalid_request_error", again=False),
    Code.TOO_LONG: Meaning(400, "invalid_request_error", again=False),
    Code.NEVER_FITS: Meaning(400, "invalid_request_error", again=False),
    Code.QUEUE_FULL: Meaning(429, "rate_limit_error", again=True),
    Code.NO_SPACE: Meaning(429, "rate_limit_error", again=True),
    Code.NO_WORKER: Meaning(503, "server_error", again=True),
    Code.DRAINING: Meaning(503, "server_error", again=True),
    Code.MISMATCH: Meaning(503, "server_error", again=True),
    Code.UNKNOWN: Meaning(503, "server_error", again=True),
    Code.WORKER_LOST: Meaning(503, "server_error", again=True),
    Code.TRANSFER: Meaning(503, "server_error", again=True),
    Code.DEADLINE: Meaning(504, "server_error", again=True),
    Code.CANCELLED: Meaning(499, "invalid_request_error", again=False),
    Code.DRAINED: Meaning(503, "server_error", again=True),
    Code.PREEMPTED: Meaning(503, "server_error", again=True),
    Code.CRASHED: Meaning(500, "server_error", again=False),
    Code.ENGINE: Meaning(500, "server_error", again=False),
}
