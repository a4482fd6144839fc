"""What a worker checks before it takes a request, and the shapes it hands to its engine."""

from __future__ import annotations

from engine.api import ChoiceTail, NewTokens, Prefill
from engine.port import Started
from protocol.errors import Code
from protocol.messages import GrantRequest, PrefillRequest, TokenEvent


def refusal(request: PrefillRequest, max_model_len: int) -> tuple[str, str] | None:
    """Code and reason why no worker of this context length can take the request; ``None`` if it can."""
    longest = max((len(tail.token_ids) for tail in request.tails), default=0)
    num_tokens = len(request.prompt_ids) + longest
    if not request.prompt_ids or not request.tails:
        return Code.BAD_REQUEST, "a request needs a prompt token and a choice"
    if num_tokens >= max_model_len:
        return Code.TOO_LONG, f"{num_tokens} tokens leave no room in a context of {max_model_len}"
    return None


def mismatch(question: GrantRequest, started: Started) -> tuple[str, str] | None:
    """Code and reason why blocks of the asking worker can't be used here; ``None`` if they can."""
    if question.layout != started.layout.fingerprint:
        return Code.MISMATCH, f"block layouts differ: {question.layout} and {started.layout.fingerprint}"
    if question.weights != started.ready.weights:
        return Code.MISMATCH, f"weights differ: {question.weights} and {started.ready.weights}"
    return None


def prefill_command(request: PrefillRequest, *, hand_over: bool, max_uncached_tokens: int = -1) -> Prefill:
    """The engine's command for a request."""
    tails = tuple(ChoiceTail(tail.choice, tail.token_ids) for tail in request.tails)
    return Prefill(
        (request.request_id, request.attempt),
        request.prompt_ids,
        tails,
        request.sampling,
        request.cache_salt,
        hand_over,
        max_uncached_tokens,
    )


def token_event(tokens: NewTokens, num_cached_tokens: int) -> TokenEvent:
    """The event that carries an engine's new tokens."""
    end = tokens.first_index + len(tokens.token_ids) if tokens.finish_reason else -1
    return TokenEvent(
        *tokens.key,
        choice=tokens.choice,
        first_index=tokens.first_index,
        token_ids=tokens.token_ids,
        logprobs=tokens.logprobs,
        finish_reason=tokens.finish_reason,
        stop_token=tokens.stop_token,
        num_tokens=end,
        num_cached_tokens=num_cached_tokens,
    )
