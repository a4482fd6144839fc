"""What a worker's word against an attempt means for its request: pure rules, no state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from gateway.attempt import Attempt
from gateway.candidate import Need, Shortage
from gateway.errors import GatewayError, from_code
from protocol.errors import MEANINGS, Code
from protocol.messages import Peer

NO_ROOM = frozenset(
    {
        Code.NO_SPACE.value,
        Code.QUEUE_FULL.value,
        Code.DRAINING.value,
        Code.MISMATCH.value,
        Code.NEVER_FITS.value,
        Code.TOO_LONG.value,
    }
)
"""Another worker may take the request. Never fitting ends it only once every worker has said so:
workers differ in size."""

MAX_CODE_LEN = 64
MAX_TEXT_LEN = 500
"""Of what a worker says; it comes from outside."""


@dataclass(frozen=True, slots=True)
class Word:
    """What a worker said (or its death says) against an attempt. ``refused``: it never began there."""

    worker: Peer
    phase: str
    code: str
    text: str
    refused: bool = False


class Step(Enum):
    """What to do about it."""

    IGNORE = auto()
    """It changes nothing: somebody else goes on with the attempt."""
    DOUBT = auto()
    """The attempt is over there, perhaps because it's done: ask before giving up."""
    ELSEWHERE = auto()
    """Another worker, or the queue; nothing has failed."""
    AGAIN = auto()
    """A failure: another attempt."""
    LATE = auto()
    """A deadline passed at the worker."""
    END = auto()
    """Another try would end alike."""


def judge(attempt: Attempt, word: Word) -> Step:
    """The rule for each code. An unknown code is a broken worker's."""
    if attempt.is_done_at(word.worker) or (word.refused and attempt.adopted):
        return Step.IGNORE
    if word.code == Code.UNKNOWN or (word.refused and word.code == Code.CANCELLED):
        return Step.DOUBT
    if word.code in NO_ROOM:
        return Step.ELSEWHERE
    if word.code == Code.DEADLINE:
        return Step.LATE
    if word.code != Code.CANCELLED and _is_final(word.code):
        return Step.END
    if word.refused:
        return Step.ELSEWHERE
    may_have_handed_over = attempt.reserves and attempt.is_prefill_only(word.worker)
    return Step.DOUBT if may_have_handed_over and attempt.prefill_heard else Step.AGAIN


def culprit(attempt: Attempt, word: Word) -> Peer:
    """The worker to do without: not always the one that spoke.

    A prefill worker passes on that the decode worker refused its grant; and a transfer that failed
    is, as far as its reporter can tell, the other side's fault.
    """
    if not attempt.reserves:
        return word.worker
    relayed = word.phase == "transfer" and word.code in NO_ROOM
    if attempt.is_prefill_only(word.worker) and (relayed or word.code == Code.TRANSFER):
        return attempt.route.decode
    if word.worker == attempt.route.decode and word.code == Code.TRANSFER and not attempt.adopted:
        return attempt.route.prefill
    return word.worker


def worker_error(word: Word) -> GatewayError:
    """What a client hears of it. What went wrong inside a worker stays in the log."""
    error = from_code(word.code[:MAX_CODE_LEN], word.text[:MAX_TEXT_LEN])
    if error.status == 500:
        return from_code(Code.ENGINE, "the request failed inside a worker")
    return error


def shortage_error(shortage: Shortage, need: Need) -> GatewayError:
    """What a client hears when there is no route, and no worker has given a better reason."""
    if shortage is Shortage.TOO_LONG:
        text = f"{need.context_len} tokens of prompt and output are more than any worker's context holds"
        return from_code(Code.TOO_LONG, text)
    if shortage is Shortage.NEVER_FITS:
        return from_code(Code.NEVER_FITS, "the request is larger than any worker's memory for it")
    if shortage is Shortage.FULL:
        return from_code(Code.NO_SPACE, "all workers are full; try again later")
    return from_code(Code.NO_WORKER, "no worker can take this request now; try again later")


def _is_final(code: str) -> bool:
    known = code in set(Code)
    return not (known and MEANINGS[Code(code)].again)
