"""What a worker's word against an attempt means for its request: pure rules, no state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from gateway.attempt import Attempt
from gateway.candidate import Route
from gateway.phase_clock import DECODE, PREFILL, TRANSFER
from protocol.errors import MEANINGS, Code
from protocol.messages import Peer

NO_ROOM = frozenset({Code.NO_SPACE, Code.QUEUE_FULL, Code.DRAINING, Code.MISMATCH, Code.NEVER_FITS, Code.TOO_LONG})
"""Another worker may take the request. Never fitting ends it only once every worker has said so:
workers differ in size."""

GIVEN_BACK = frozenset({Code.DRAINED, Code.PREEMPTED})
"""The request is whole, and nothing has failed."""

OWN_FAULT = frozenset({Code.ENGINE, Code.CRASHED, Code.TRANSFER})
"""Something is wrong with the worker, not with the request."""


class Source(Enum):
    """How a word came about."""

    FAILED = auto()
    REFUSED = auto()
    """The attempt never began there."""
    LOST = auto()
    """Nobody spoke: the worker's life is over."""
    SILENT = auto()
    """Nobody spoke: the worker lives and doesn't answer."""


@dataclass(frozen=True, slots=True)
class Word:
    """What a worker said, or its death or silence says, against an attempt."""

    worker: Peer
    phase: str
    code: Code
    text: str
    source: Source = Source.FAILED

    @property
    def refused(self) -> bool:
        """Whether the attempt never began there."""
        return self.source is Source.REFUSED


class Step(Enum):
    """What to do about it."""

    IGNORE = auto()
    """It changes nothing: somebody else goes on with the attempt."""
    DOUBT = auto()
    """The attempt is over there, perhaps because it's done: ask before giving up."""
    ELSEWHERE = auto()
    """Another worker, or the queue; nothing has failed."""
    GIVEN_BACK = auto()
    """Another attempt at once; nothing has failed."""
    AGAIN = auto()
    """A failure: another attempt."""
    LATE = auto()
    """A deadline passed at the worker."""
    END = auto()
    """Another try would end alike."""


def code_of(text: str) -> Code:
    """The code of this name; one that nobody knows is a broken worker's."""
    return Code(text) if text in set(Code) else Code.ENGINE


def judge(attempt: Attempt, word: Word) -> Step:
    """The rule for each code."""
    if attempt.is_done_at(word.worker) or (word.refused and attempt.adopted):
        return Step.IGNORE
    if word.code is Code.UNKNOWN or (word.refused and word.code is Code.CANCELLED):
        return Step.DOUBT
    if word.code in NO_ROOM:
        return Step.ELSEWHERE
    if word.code is Code.DEADLINE:
        return Step.LATE
    if not MEANINGS[word.code].again and word.code is not Code.CANCELLED and word.code not in OWN_FAULT:
        return Step.END
    if word.refused and word.code not in OWN_FAULT:
        return Step.ELSEWHERE
    if attempt.reserves and attempt.is_prefill_only(word.worker) and attempt.prefill_heard:
        return Step.DOUBT  # it may have handed over before
    return Step.GIVEN_BACK if word.code in GIVEN_BACK else Step.AGAIN


def culprit(route: Route, word: Word, *, adopted: bool = False) -> Peer:
    """The worker to do without: not always the one that spoke.

    Each of a pair passes on what the other one said; its phase tells whose word it was. And a
    transfer that failed is, as far as its reporter can tell, the other side's fault.
    """
    if route.local or not route.decode.id or word.source in (Source.LOST, Source.SILENT):
        return word.worker
    if word.phase == PREFILL:
        return route.prefill
    if word.phase == DECODE:
        return route.decode
    other = route.decode if word.worker == route.prefill else route.prefill
    if word.code is Code.TRANSFER:
        return word.worker if adopted and word.worker == route.decode else other
    refused_grant = word.code in NO_ROOM and word.worker == route.prefill
    of_the_other = word.code is Code.WORKER_LOST or refused_grant
    return other if word.phase == TRANSFER and of_the_other else word.worker


def is_own_fault(word: Word) -> bool:
    """Whether its culprit is kept out for a while."""
    return word.source is Source.SILENT or word.code in OWN_FAULT
