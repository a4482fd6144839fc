"""What the HTTP side asks of the dispatcher, and what it gets back: ids in, ids out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from protocol.sampling import Sampling, TokenLogprob


@dataclass(frozen=True, slots=True)
class Generation:
    """One prompt and how many choices to make of it. ``label`` is the client's ``x-request-id``, for logs only."""

    prompt_ids: tuple[int, ...]
    num_choices: int
    sampling: Sampling
    cache_salt: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class Update:
    """New accepted tokens of one choice, in order and without gaps; ``finish_reason`` "" unless they are its last."""

    choice: int
    first_index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: str
    stop_token: int


class Stream(Protocol):
    """One request on its way. Ends by itself when every choice has ended."""

    request_id: str

    @property
    def path(self) -> str:
        """ "split", "fallback", "both" or "local": how the first token was made; "" before that is decided."""

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens whose compute was skipped; known with the first update."""

    @property
    def num_attempts(self) -> int:
        """Tries so far; 1 for an undisturbed request."""

    def updates(self) -> AsyncIterator[Update]:
        """Accepted tokens as they come. Raises ``GatewayError`` when the request failed; stops after the last choice."""

    def stop(self, choice: int, num_tokens: int) -> None:
        """The text side found a stop string: this choice ends after ``num_tokens`` tokens; no more updates for it."""

    def cancel(self, reason: str) -> None:
        """End everything on both workers. Idempotent; legal in every state, also after the end."""


class Dispatcher(Protocol):
    """Routes generations to workers."""

    async def submit(self, generation: Generation) -> Stream:
        """Queue, choose workers and send. Raises ``GatewayError`` when nothing can take it."""

    def ready(self) -> tuple[str, list[str], int, int]:
        """(status, paths, prefill workers, decode workers); status is "ok", "degraded" or "unavailable"."""
