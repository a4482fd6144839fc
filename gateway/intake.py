"""Tokens coming in: into the accepted lists, on to the reader, and acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.accepted import MalformedEventError
from gateway.candidate import Need
from gateway.choices import Choices
from gateway.generation import Update
from gateway.mailbox import Mailbox
from protocol.messages import Resend, Stop
from runtime.logs import get_logger

if TYPE_CHECKING:
    from gateway.accepted import AcceptedList
    from gateway.attempt import Attempt
    from gateway.desk import Desk
    from gateway.generation import Generation
    from protocol.messages import Embedded, Peer, TokenEvent

log = get_logger("gateway.intake")

MAX_VECTOR_BYTES = 1 << 18
"""Of 65,536 numbers; models have up to about 16,384."""


class Intake:
    """The token side of one request, over all its attempts."""

    def __init__(self, desk: Desk, request_id: str, generation: Generation) -> None:
        """``num_cached_tokens`` is -1 and ``first_path`` "" until a token was accepted."""
        self._desk = desk
        self._request_id = request_id
        self._num_prompt = len(generation.prompt_ids)
        self._max_tokens = generation.sampling.max_tokens
        self._is_scored = bool(generation.sampling.forced_ids)
        self._is_pooled = bool(generation.sampling.pooling)
        self.choices = Choices(generation.num_choices, generation.sampling.max_tokens)
        self.mailbox = Mailbox()
        self.first_path = ""
        self.num_cached_tokens = -1

    def need(self) -> Need:
        """What the next attempt will need; some choice must be live."""
        lens = [each.next_index for each in self.choices.live]
        known = self._max_tokens - 1 if self._is_scored else max(lens)
        return Need(
            num_tokens=self._num_prompt + known,
            num_choices=len(lens),
            context_len=self._num_prompt + self._max_tokens,
            one_token=self._max_tokens - min(lens) <= 1 or self._is_scored,
        )

    def take(self, attempt: Attempt, sender: Peer, event: TokenEvent) -> bool:
        """An event of the current attempt, from one of its workers. False if no correct worker sends it."""
        choice = self.choices.get(event.choice)
        if choice is None:
            log.error("event_malformed", worker=sender.id, request_id=self._request_id)
            return False
        if choice.stopped_at is not None:
            choice.waste(event)
            self._desk.acks.past_all(sender, event, cancel=False)
            self._send_stop(sender, attempt, choice)
            return True
        try:
            update = choice.offer(event)
        except MalformedEventError as error:
            log.error(
                "event_malformed",
                worker=sender.id,
                request_id=self._request_id,
                choice=event.choice,
                error=str(error),
            )
            return False
        if self.num_cached_tokens < 0 <= event.num_cached_tokens:
            self.num_cached_tokens = event.num_cached_tokens
        self._desk.acks.note(sender, self._request_id, attempt.number, event.choice, choice.ack_index)
        self._watch_gap(attempt, sender, choice, moved=update is not None)
        if update is not None:
            self.first_path = self.first_path or attempt.route.path
            self.mailbox.put(update)
        return True

    def take_vector(self, attempt: Attempt, sender: Peer, message: Embedded) -> bool:
        """A prompt's vector, instead of tokens. False if no correct worker sends it."""
        if not self._is_pooled or not 0 < len(message.vector) <= MAX_VECTOR_BYTES or len(message.vector) % 4:
            log.error("vector_malformed", worker=sender.id, request_id=self._request_id)
            return False
        self.num_cached_tokens = max(message.num_cached_tokens, 0)
        self.first_path = self.first_path or attempt.route.path
        for choice in self.choices.live:
            choice.finish_reason = "stop"
        self.mailbox.put(Update(0, 0, (), (), "stop", -1, message.vector))
        return True

    def stop(self, attempt: Attempt | None, choice_number: int, num_tokens: int) -> bool:
        """The text side ends a choice. True if no live one is left, so that a Cancel is due."""
        self.mailbox.drop(choice_number)
        choice = self.choices.get(choice_number)
        if choice is None or choice.over:
            return False
        choice.stop(num_tokens)
        self._desk.gaps.close((self._request_id, choice_number))
        if not self.choices.live:
            return True
        if attempt is not None:
            for peer in attempt.route.peers:
                if not attempt.is_done_at(peer):
                    self._send_stop(peer, attempt, choice)
        return False

    def new_attempt(self) -> None:
        """Forget what waits of the attempt before; end choices that have all their tokens."""
        self.choices.new_attempt()
        self.close_gaps()
        for update in self.choices.end_full_ones():
            self.mailbox.put(update)

    def close_gaps(self) -> None:
        """Nothing is missed any more."""
        for choice in self.choices:
            self._desk.gaps.close((self._request_id, choice.choice))

    def _watch_gap(self, attempt: Attempt, sender: Peer, choice: AcceptedList, *, moved: bool) -> None:
        """Whoever sent what lies beyond a gap has what belongs into it."""
        key = (self._request_id, choice.choice)
        if moved or not choice.has_gap:
            self._desk.gaps.close(key)
        if not choice.has_gap:
            return

        def ask() -> None:
            self._desk.metrics.resent()
            self._desk.postbox.send(
                sender,
                Resend(self._request_id, attempt.number, choice.choice, choice.next_index),
            )

        self._desk.gaps.open(key, ask)

    def _send_stop(self, peer: Peer, attempt: Attempt, choice: AcceptedList) -> None:
        """Has no answer: a later event of the choice shows that it was lost, and it's sent again."""
        self._desk.postbox.send(peer, Stop(self._request_id, attempt.number, choice.choice, choice.num_output))
