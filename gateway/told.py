"""What clients hear of a request that didn't finish."""

from __future__ import annotations

from gateway.candidate import Need, Shortage
from gateway.errors import GatewayError, from_code
from gateway.ladder import Word
from protocol.errors import Code

MAX_TEXT_LEN = 500
"""Of what a worker or an operator says; it comes from outside."""


def worker_error(word: Word) -> GatewayError:
    """A worker's reason. What went wrong inside a worker stays in the log."""
    if word.code is Code.CRASHED:
        return from_code(Code.CRASHED, "the worker ended while it computed this request")
    if word.code is Code.ENGINE:
        return from_code(Code.ENGINE, "the request failed inside a worker")
    if word.code is Code.CANCELLED:  # by the worker, not by the client
        return from_code(Code.WORKER_LOST, word.text[:MAX_TEXT_LEN])
    return from_code(word.code, word.text[:MAX_TEXT_LEN])


def crash_error(num_workers: int) -> GatewayError:
    """It isn't given to yet another worker."""
    return from_code(
        Code.CRASHED, f"{num_workers} workers ended while they computed this request; it isn't tried on another"
    )


def shortage_error(shortage: Shortage, need: Need, retry_after_s: int | None = None) -> GatewayError:
    """There is no route, and no worker has given a better reason."""
    if shortage is Shortage.TOO_LONG:
        text = f"{need.context_len} tokens of prompt and output exceed context limit of every worker"
        return from_code(Code.TOO_LONG, text)
    if shortage is Shortage.NEVER_FITS:
        return from_code(Code.NEVER_FITS, "the request is larger than any worker's memory for it")
    if shortage is Shortage.FULL:
        return later(Code.NO_SPACE, "all workers are full; try again later", retry_after_s)
    return from_code(Code.NO_WORKER, "no worker can take this request now; try again later")


def late_error(phase: str, limit_s: float) -> GatewayError:
    """A phase took too long."""
    return from_code(Code.DEADLINE, f"the {phase} phase took longer than {limit_s:g} seconds")


def deadline_error(deadline_ms: int, phase: str) -> GatewayError:
    """The whole request took too long."""
    return from_code(Code.DEADLINE, f"the request's deadline of {deadline_ms} ms passed in its {phase} phase")


def lost_error(reason: str) -> GatewayError:
    """Its workers gave it up, and no other was found in time. Never a 429: it had been taken."""
    return from_code(Code.NO_WORKER, f"no worker was found to go on with the request ({reason}); try again later")


def silence_error() -> GatewayError:
    """It waited while nobody could be heard."""
    return from_code(Code.NO_WORKER, "the message bus is silent, so no worker can be reached; try again later")


def later(code: Code, message: str, retry_after_s: int | None) -> GatewayError:
    """A refusal that may be none in some seconds."""
    error = from_code(code, message)
    error.retry_after_s = retry_after_s or error.retry_after_s
    return error
