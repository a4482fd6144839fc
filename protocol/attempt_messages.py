"""The ends of attempts, and who still wants them."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.peers import AttemptRef


@dataclass(frozen=True, slots=True)
class Stop:
    """Gateway → worker: this choice ended after ``num_tokens`` tokens; the others go on."""

    request_id: str
    attempt: int
    choice: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Anyone → worker: end this attempt and all before it. An operator → gateway: end the request.

    Answered by Released.
    """

    request_id: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Released:
    """Worker → whoever asked: nothing is held here for this attempt or an earlier one."""

    request_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Finished:
    """Prefill → decode worker: every choice ended at its first token; drop what is held. Answered by Released."""

    request_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Worker → gateway and the other worker: this attempt can't go on. ``code`` is in protocol.errors."""

    request_id: str
    attempt: int
    phase: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """Each second, by name: attempts whose holds the sender still wants. Being alive renews nothing."""

    attempts: tuple[AttemptRef, ...]
