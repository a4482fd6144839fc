"""One request's life: from the queue over its attempts to its one outcome."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.candidate import Need, Route, Shortage
from gateway.errors import GatewayError, from_code
from gateway.intake import Intake
from gateway.ladder import Word, shortage_error, worker_error
from gateway.objections import Objections
from gateway.outcome import CANCELLED, DEADLINE, FAILED, FINISHED, REFUSED, Outcome
from gateway.phase_clock import QUEUE, PhaseClock
from gateway.planner import History, Prefix
from gateway.sending import Sending
from protocol.errors import Code

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.desk import Desk
    from gateway.generation import Generation, Update
    from protocol.messages import Failed, Peer, Refused, TokenEvent


class Request:
    """A ``Stream`` to the HTTP side, and the target of what workers say about its attempts."""

    def __init__(self, desk: Desk, request_id: str, number: int, generation: Generation) -> None:
        """``number`` is the order of arrival. Needs a running loop; nothing is sent before ``begin``."""
        self.request_id = request_id
        self.number = number
        self.placed = asyncio.Event()
        self.error: GatewayError | None = None
        self._desk = desk
        self._generation = generation
        self._history = History()
        self._prefix = Prefix(generation.prompt_ids, generation.cache_salt)
        self._clock = PhaseClock(desk.settings.limits_s(), self._late)
        self._intake = Intake(desk, request_id, generation)
        self._sending = Sending(desk, request_id, generation, self._prefix, self._clock)
        self._objections = Objections(desk, self._sending, self._intake, self._clock, self._history, self)
        self._ended = False

    @property
    def path(self) -> str:
        """As ``Stream`` promises; settled when the first token is accepted."""
        route = self._sending.last_route
        return self._intake.first_path or (route.path if route is not None else "")

    @property
    def num_cached_tokens(self) -> int:
        """As ``Stream`` promises."""
        return max(self._intake.num_cached_tokens, 0)

    @property
    def num_attempts(self) -> int:
        """As ``Stream`` promises."""
        return self._sending.num_attempts

    async def updates(self) -> AsyncIterator[Update]:
        """As ``Stream`` promises; a reader that goes away cancels the request."""
        try:
            while (update := await self._intake.mailbox.next()) is not None:
                yield update
        finally:
            self.cancel("its reader left")

    def stop(self, choice: int, num_tokens: int) -> None:
        """As ``Stream`` promises; stopping the last live choice finishes the request."""
        if self._intake.stop(self._sending.attempt, choice, num_tokens):
            self.end(FINISHED, cancel=True)

    def cancel(self, reason: str) -> None:
        """As ``Stream`` promises."""
        self.end(CANCELLED, from_code(Code.CANCELLED, reason), cancel=True)

    def begin(self) -> None:
        """Send it, queue it, or end it at once. ``placed`` is set when it was sent or has ended."""
        self._clock.enter(QUEUE)
        found = self._route()
        if isinstance(found, Shortage) and found is not Shortage.FULL:
            self.end(REFUSED, shortage_error(found, self._need()))
        elif isinstance(found, Route) and not len(self._desk.waiting):
            self._start(found)
        elif self._desk.waiting.full:
            text = f"{len(self._desk.waiting)} requests are waiting already; try again later"
            self.end(REFUSED, from_code(Code.QUEUE_FULL, text))
        else:
            self._desk.waiting.add(self)
            self._desk.waiting.pump()

    def try_to_start(self) -> bool:
        """Called while it waits, whenever something changed at the workers."""
        found = self._route()
        if isinstance(found, Route):
            self._start(found)
            return True
        if found in (Shortage.FULL, Shortage.NO_WORKER):
            return False
        self.end(REFUSED, shortage_error(found, self._need()))
        return True

    def accepted_by(self, sender: Peer, number: int) -> bool:
        """A worker holds an attempt. False if nothing of the request is wanted there."""
        attempt = self._sending.current(sender, number)
        if attempt is not None:
            self._sending.accepted(attempt, sender)
        return self._sending.serves(sender)

    def refused_by(self, sender: Peer, message: Refused) -> None:
        """A worker doesn't take the attempt."""
        word = Word(sender, message.phase, message.code, message.message, refused=True)
        self._objections.hear(message.attempt, word)

    def failed_by(self, sender: Peer, message: Failed) -> None:
        """A worker gives the attempt up."""
        self._objections.hear(message.attempt, Word(sender, message.phase, message.code, message.message))

    def lost(self, worker: Peer) -> None:
        """A worker's life is over."""
        text = f"worker {worker.id} was lost"
        self._objections.hear(self.num_attempts, Word(worker, self._clock.phase, Code.WORKER_LOST, text))

    def take(self, sender: Peer, event: TokenEvent) -> None:
        """New tokens of a choice."""
        attempt = self._sending.current(sender, event.attempt)
        if attempt is None:
            self._desk.acks.past_all(sender, event, cancel=not self._sending.serves(sender))
            return
        self._sending.heard(attempt, sender)
        if not self._intake.take(attempt, sender, event):
            word = Word(sender, self._clock.phase, Code.ENGINE, "malformed event")
            self.end(FAILED, worker_error(word), cancel=True)
        elif not self._intake.choices.live:
            self.end(FINISHED)

    def move(self, kind: str, error: GatewayError) -> None:
        """On to another pair, or into the queue; ``kind`` and ``error`` are the end if there is none."""
        self._intake.new_attempt()
        if not self._intake.choices.live:
            self.end(FINISHED, cancel=True)
            return
        found = self._route()
        if isinstance(found, Route):
            self._start(found)
        elif found is Shortage.FULL:
            self._sending.leave("no room for it now")
            self._history.prefer.clear()
            self._clock.enter(QUEUE)
            self._desk.waiting.add(self)
        else:
            self.end(kind, error, cancel=True)

    def _start(self, route: Route) -> None:
        self._desk.waiting.remove(self.request_id)
        self._sending.start(route, self._intake.choices.tails(), self._need())
        self.placed.set()

    def _route(self) -> Route | Shortage:
        return self._desk.planner.route(self._need(), self._prefix, self._history)

    def _need(self) -> Need:
        lens = [each.next_index for each in self._intake.choices.live]
        num_prompt = len(self._generation.prompt_ids)
        max_tokens = self._generation.sampling.max_tokens
        return Need(
            num_tokens=num_prompt + max(lens),
            num_choices=len(lens),
            context_len=num_prompt + max_tokens,
            one_token=max_tokens - min(lens) <= 1,
        )

    def _late(self, phase: str) -> None:
        """A phase took too long. Waiting for room in vain is no failure: the client may come again."""
        if phase != QUEUE:
            text = f"the {phase} phase took longer than {self._clock.limit_s(phase):g} seconds"
            self.end(DEADLINE, from_code(Code.DEADLINE, text), cancel=True)
            return
        found = self._route()
        shortage = found if isinstance(found, Shortage) else Shortage.FULL
        kind = FAILED if self._intake.choices.begun else REFUSED
        self.end(kind, shortage_error(shortage, self._need()))

    def end(self, kind: str, error: GatewayError | None = None, *, cancel: bool = False) -> None:
        """Pronounce the one outcome. ``cancel``: workers may still hold something and are told."""
        if self._ended:
            return
        self._ended = True
        self.error = error
        self._clock.stop()
        self._desk.waiting.remove(self.request_id)
        self._intake.close_gaps()
        self._sending.leave(kind, cancel=cancel)
        self._intake.mailbox.close(error)
        self.placed.set()
        outcome = self._outcome(kind, error)
        outcome.log()
        self._desk.metrics.ended(outcome)
        self._desk.forget(self.request_id)

    def _outcome(self, kind: str, error: GatewayError | None) -> Outcome:
        return Outcome(
            request_id=self.request_id,
            label=self._generation.label,
            kind=kind,
            phase=self._clock.phase,
            code=(error.code or "") if error is not None else "",
            message=error.message if error is not None else "",
            path=self.path,
            last_route=self._sending.last_route,
            num_attempts=self.num_attempts,
            num_prompt_tokens=len(self._generation.prompt_ids),
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=self._intake.choices.num_output,
            num_wasted_tokens=self._intake.choices.num_wasted,
            spent_s=dict(self._clock.spent_s),
        )
