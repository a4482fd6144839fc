"""One choice's accepted tokens: in order, without gaps, whatever way the events came."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.generation import Update

if TYPE_CHECKING:
    from protocol.messages import TokenEvent
    from protocol.sampling import TokenLogprob

MAX_AHEAD = 64
"""Events that may wait for a missing one; what is dropped beyond comes back with the answer to Resend."""


class MalformedEventError(Exception):
    """A worker's event that can't be true; the worker is broken."""


class AcceptedList:
    """Tokens of one choice over all attempts. Every token is accepted once, and so is the end."""

    def __init__(self, choice: int, max_tokens: int) -> None:
        """``max_tokens`` is the longest that the choice may get."""
        self.choice = choice
        self.max_tokens = max_tokens
        self.token_ids: list[int] = []
        self.finish_reason = ""
        self.stop_token = -1
        self.stopped_at: int | None = None
        self.num_wasted = 0
        self._ahead: dict[int, TokenEvent] = {}

    @property
    def over(self) -> bool:
        """Ended by a worker or stopped by the text side: nothing more is delivered."""
        return bool(self.finish_reason) or self.stopped_at is not None

    @property
    def next_index(self) -> int:
        """Index of the next token to accept."""
        return len(self.token_ids)

    @property
    def ack_index(self) -> int:
        """What an Ack says: ``next_index``, one more once the end is accepted too."""
        return self.next_index + bool(self.finish_reason)

    @property
    def num_output(self) -> int:
        """Tokens that count as usage."""
        return self.next_index if self.stopped_at is None else self.stopped_at

    @property
    def has_gap(self) -> bool:
        """Later tokens came and earlier ones didn't."""
        return bool(self._ahead)

    def offer(self, event: TokenEvent) -> Update | None:
        """Accept what is new in an event of the current attempt; ``None`` if nothing is, or not yet.

        Raises ``MalformedEventError`` for an event that no correct worker sends.
        """
        self._check(event)
        if self.over:
            return None
        if event.first_index > self.next_index:
            if len(self._ahead) < MAX_AHEAD:
                self._ahead[event.first_index] = event
            return None
        first_index = self.next_index
        logprobs: list[TokenLogprob] = []
        self._take(event, logprobs)
        while self._ahead and (index := min(self._ahead)) <= self.next_index:
            self._take(self._ahead.pop(index), logprobs)
        if self.next_index == first_index and not self.finish_reason:
            return None
        return self._update(first_index, logprobs)

    def end(self, finish_reason: str) -> Update:
        """The gateway's own verdict on a choice that has all its tokens."""
        self.finish_reason = finish_reason
        return self._update(self.next_index, [])

    def stop(self, num_tokens: int) -> None:
        """The text side ends the choice; tokens past ``num_tokens`` were wasted."""
        self.stopped_at = min(num_tokens, self.next_index)
        self.num_wasted += self.next_index - self.stopped_at
        self._ahead.clear()

    def waste(self, event: TokenEvent) -> None:
        """Count the tokens that a worker made of a choice that was over."""
        end = event.first_index + len(event.token_ids)
        self.num_wasted = max(self.num_wasted, end - self.num_output)

    def new_attempt(self) -> None:
        """What waits is of an older attempt: forget it."""
        self._ahead.clear()

    def _take(self, event: TokenEvent, logprobs: list[TokenLogprob]) -> None:
        known = self.next_index - event.first_index
        self.token_ids.extend(event.token_ids[known:])
        logprobs.extend(event.logprobs[known:])
        if event.finish_reason and self.next_index == event.num_tokens:
            self.finish_reason = event.finish_reason
            self.stop_token = event.stop_token
            self._ahead.clear()

    def _update(self, first_index: int, logprobs: list[TokenLogprob]) -> Update:
        return Update(
            choice=self.choice,
            first_index=first_index,
            token_ids=tuple(self.token_ids[first_index:]),
            logprobs=tuple(logprobs),
            finish_reason=self.finish_reason,
            stop_token=self.stop_token,
        )

    def _check(self, event: TokenEvent) -> None:
        end = event.first_index + len(event.token_ids)
        if event.first_index < 0 or end > self.max_tokens:
            raise MalformedEventError(f"tokens {event.first_index} to {end} of {self.max_tokens}")
        if event.logprobs and len(event.logprobs) != len(event.token_ids):
            raise MalformedEventError("log probabilities of some tokens only")
        if event.finish_reason and event.num_tokens != end:
            raise MalformedEventError(f"ends after {end} tokens and says {event.num_tokens}")
