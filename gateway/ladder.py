"""What a worker's trouble means for a request: pure rules, no state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.candidate import Need, Shortage
from gateway.errors import GatewayError, from_code
from protocol.errors import MEANINGS, Code

if TYPE_CHECKING:
    from gateway.candidate import Route
    from protocol.messages import Peer

ELSEWHERE = frozenset({Code.NEVER_FITS.value, Code.TOO_LONG.value})
"""Refusals that end a request only when every worker has given one: pools differ in size."""

BOTH_SIDES = frozenset({Code.TRANSFER.value, Code.NO_SPACE.value, Code.MISMATCH.value})
"""Failures that one side reports and the other one caused, as far as the reporter can tell."""


MAX_CODE_LEN = 64
MAX_TEXT_LEN = 500
"""Of what a worker says; it comes from outside."""


def is_final(code: str) -> bool:
    """Nothing is gained by another try. An unknown code is."""
    known = code in set(Code)
    return not (known and MEANINGS[Code(code)].again)


def refusal_is_final(code: str) -> bool:
    """No other worker would take it either."""
    return is_final(code) and code not in ELSEWHERE


def blamed(reporter: Peer, code: str, route: Route) -> Peer:
    """The worker that the next attempt does without if it can."""
    if code in BOTH_SIDES and not route.local and route.decode.id:
        return route.decode if reporter == route.prefill else route.prefill
    return reporter


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


def worker_error(code: str, text: str) -> GatewayError:
    """What a client hears of a worker's word. What went wrong inside a worker stays in the log."""
    error = from_code(code[:MAX_CODE_LEN], text[:MAX_TEXT_LEN])
    if error.status == 500:
        error = from_code(error.code or Code.ENGINE, "the request failed inside a worker")
    return error
