"""What the HTTP side asks of the dispatcher, and what it gets back: ids in, ids out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from gateway.health import Health
from protocol.sampling import Sampling, TokenLogprob

MAX_TOLD = 16
"""Tries in a log line."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One prompt and how many choices to make of it. ``label`` is the client's ``x-request-id``, for logs only.

    ``deadline_ms`` counts from now over everything; 0 is no deadline.
    """

    prompt_ids: tuple[int, ...]
    num_choices: int
    sampling: Sampling
    cache_salt: str = ""
    label: str = ""
    deadline_ms: int = 0


@dataclass(frozen=True, slots=True)
class Try:
    """One attempt: its path and workers, and the code of what ended it before its time ("" if nothing did)."""

    path: str
    prefill: str
    decode: str
    reason: str

    def told(self) -> str:
        """Some words for logs."""
        workers = dict.fromkeys(worker for worker in (self.prefill, self.decode) if worker)
        return f"{self.path} {'>'.join(workers)} {self.reason}".rstrip()


@dataclass(frozen=True, slots=True)
class Journey:
    """A request's way so far; ``phases_ms`` adds up its attempts."""

    request_id: str
    tries: tuple[Try, ...] = ()
    phases_ms: dict[str, float] = field(default_factory=dict)

    def told(self) -> str:
        """One line for logs: the last tries, the oldest of them first."""
        return "; ".join(each.told() for each in self.tries[-MAX_TOLD:])


@dataclass(frozen=True, slots=True)
class Update:
    """New accepted tokens of one choice, in order and without gaps; ``finish_reason`` "" unless they are its last.

    ``vector`` is what a prompt that is pooled gets instead, float32 in little-endian order.
    """

    choice: int
    first_index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: str
    stop_token: int
    vector: bytes = b""


class Stream(Protocol):
    """One request on its way. Ends by itself when every choice has ended."""

    request_id: str

    @property
    def path(self) -> str:
        """How the first token was made: "split", "fallback", "both" or "local"; "" before that is decided."""

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens whose compute was skipped; known with the first update."""

    @property
    def num_attempts(self) -> int:
        """Tries so far; 1 for an undisturbed request."""

    def journey(self) -> Journey:
        """Where it has been, for those who ask; complete once it has ended."""

    @property
    def over(self) -> bool:
        """Nothing more comes than what ``take`` returns next."""

    def on_news(self, callback: Callable[[], None]) -> None:
        """Call back whenever there is something to take, and when nothing more will come. One reader a stream."""

    def take(self) -> list[Update]:
        """Tokens accepted since the last call, in order; none if there is nothing new.

        Raises ``GatewayError``, after the last tokens, if the request failed.
        """

    def stop(self, choice: int, num_tokens: int) -> None:
        """The text side found a stop string: this choice ends after ``num_tokens`` tokens; no more updates for it."""

    def cancel(self, reason: str) -> None:
        """End everything on both workers. Idempotent; legal in every state, also after the end."""


class Dispatcher(Protocol):
    """Routes generations to workers."""

    async def submit(self, generation: Generation) -> Stream:
        """Queue, choose workers and send. Raises ``GatewayError`` when nothing can take it."""

    def health(self) -> Health:
        """What can be generated now, and what stands in the way."""

    def context_len(self) -> int:
        """Longest context that known workers can take, in tokens (pools may hold less than the model); 0: unknown."""
