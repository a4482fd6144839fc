"""One request's life: from the queue over its attempts to its one outcome."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.candidate import Route, Shortage
from gateway.errors import GatewayError, from_code
from gateway.generation import Journey
from gateway.history import History
from gateway.intake import Intake
from gateway.ladder import Source, Word, code_of
from gateway.objections import Objections
from gateway.outcome import CANCELLED, DEADLINE, FAILED, FINISHED, REFUSED, Outcome
from gateway.phase_clock import QUEUE, WHOLE, PhaseClock
from gateway.prefix import Prefix
from gateway.sending import Sending
from gateway.told import deadline_error, late_error, later, lost_error, shortage_error, silence_error
from gateway.waiting import Turn
from protocol.errors import Code

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.desk import Desk
    from gateway.generation import Generation, Update
    from protocol.messages import Embedded, Failed, Peer, Refused, TokenEvent


class Request:
    """A ``Stream`` to the HTTP side, and the target of what workers say about its attempts."""

    def __init__(self, desk: Desk, request_id: str, number: int, generation: Generation) -> None:
        """``number`` is the order of arrival. Needs a running loop; nothing is sent before ``begin``."""
        self.request_id = request_id
        self.number = number
        self.moved = False
        self.placed = asyncio.Event()
        self.error: GatewayError | None = None
        self._desk = desk
        self._generation = generation
        self._history = History()
        self._prefix = Prefix(generation.prompt_ids, generation.cache_salt)
        whole_s = generation.deadline_ms / 1000
        self._clock = PhaseClock(desk.settings.limits_s(), desk.hearing, self.late, whole_s)
        self._intake = Intake(desk, request_id, generation)
        self._sending = Sending(desk, request_id, generation, self._prefix, self._clock, self._history)
        self._objections = Objections(desk, self._sending, self._intake, self._clock, self._history, self)
        self._sending.on_silent = self._objections.silent
        self._ended = False

    @property
    def path(self) -> str:
        """As ``Stream`` promises; settled when the first token is accepted."""
        tries = self._sending.tries
        return self._intake.first_path or (tries[-1].path if tries else "")

    @property
    def num_cached_tokens(self) -> int:
        """As ``Stream`` promises."""
        return max(self._intake.num_cached_tokens, 0)

    @property
    def num_attempts(self) -> int:
        """As ``Stream`` promises."""
        return self._sending.num_attempts

    def journey(self) -> Journey:
        """As ``Stream`` promises."""
        phases_ms = {phase: round(spent * 1000, 1) for phase, spent in self._clock.spent_s.items()}
        return Journey(self.request_id, self._sending.tries, phases_ms)

    @property
    def over(self) -> bool:
        """As ``Stream`` promises."""
        return self._intake.mailbox.over

    def on_news(self, callback: Callable[[], None]) -> None:
        """As ``Stream`` promises."""
        self._intake.mailbox.on_news = callback

    def take(self) -> list[Update]:
        """As ``Stream`` promises."""
        return self._intake.mailbox.take()

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
            self.end(REFUSED, shortage_error(found, self._intake.need()))
        elif isinstance(found, Route) and not len(self._desk.waiting):
            self._start(found)
        elif reason := self._desk.waiting.reason_to_refuse():
            self.end(REFUSED, self._queue_error(reason))
        else:
            self._desk.waiting.add(self)
            self._desk.waiting.pump()

    def try_to_start(self) -> Turn:
        """Called while it waits, whenever something changed at the workers."""
        found = self._route()
        if isinstance(found, Route):
            self._start(found)
            return Turn.STARTED
        if found is Shortage.FULL:
            return Turn.WAITS
        if found is Shortage.NO_WORKER:
            return Turn.ASIDE
        self.end(REFUSED, shortage_error(found, self._intake.need()))
        return Turn.ENDED

    def served_by(self, peer: Peer) -> bool:
        """``peer`` is a worker that has had an attempt of it."""
        return self._sending.served(peer)

    def accepted_by(self, sender: Peer, number: int) -> bool:
        """A worker holds an attempt. False if nothing of the request is wanted there."""
        attempt = self._sending.current(sender, number)
        if attempt is not None:
            self._sending.accepted(attempt, sender)
        return self._sending.serves(sender)

    def refused_by(self, sender: Peer, message: Refused) -> None:
        """A worker doesn't take the attempt."""
        word = Word(sender, message.phase, code_of(message.code), message.message, Source.REFUSED)
        self._objections.hear(message.attempt, word)

    def failed_by(self, sender: Peer, message: Failed) -> None:
        """A worker gives the attempt up."""
        word = Word(sender, message.phase, code_of(message.code), message.message)
        self._objections.hear(message.attempt, word)

    def lost(self, worker: Peer) -> None:
        """A worker's life is over."""
        text = f"worker {worker.id} was lost"
        word = Word(worker, self._clock.phase, Code.WORKER_LOST, text, Source.LOST)
        self._objections.hear(self.num_attempts, word)

    def hear(self, sender: Peer, event: TokenEvent) -> None:
        """New tokens of a choice."""
        attempt = self._sending.current(sender, event.attempt)
        if attempt is None:
            self._desk.acks.past_all(sender, event, cancel=not self._sending.serves(sender))
            return
        self._sending.heard(attempt, sender)
        if not self._intake.take(attempt, sender, event):
            word = Word(sender, "", Code.ENGINE, "malformed event")
            self._objections.hear(attempt.number, word)
        elif not self._intake.choices.live:
            self._sending.worked(attempt)
            self.end(FINISHED)

    def embedded_by(self, sender: Peer, message: Embedded) -> bool:
        """The prompt's vector, with which the request is over. False if nothing of it is wanted there."""
        attempt = self._sending.current(sender, message.attempt)
        if attempt is None:
            return self._sending.serves(sender)
        self._sending.heard(attempt, sender)
        if self._intake.take_vector(attempt, sender, message):
            self._sending.worked(attempt)
            self.end(FINISHED, cancel=True)
        else:
            self._objections.hear(attempt.number, Word(sender, "", Code.ENGINE, "malformed vector"))
        return True

    def move(self, kind: str, error: GatewayError, *, moved: bool) -> None:
        """As ``Life`` promises. Who was moved waits for a worker as well as for room."""
        if moved and not self.moved:
            self.moved = True
            self._clock.begin_again()
        self._intake.new_attempt()
        if not self._intake.choices.live:
            self.end(FINISHED, cancel=True)
            return
        found = self._route()
        if isinstance(found, Route) and not (self.moved and self._desk.waiting.is_behind(self)):
            self._start(found)
        elif isinstance(found, Route) or found is Shortage.FULL or (self.moved and found is Shortage.NO_WORKER):
            self._wait()
        else:
            self.end(kind, error, cancel=True)

    def _wait(self) -> None:
        self._sending.leave("no room for it now")
        self._history.prefer.clear()
        self._clock.enter(QUEUE)
        self._desk.waiting.add(self)
        self._desk.waiting.pump()

    def _start(self, route: Route) -> None:
        self._desk.waiting.remove(self.request_id)
        self._sending.start(route, self._intake.choices.tails(), self._intake.need())
        self.placed.set()

    def _route(self) -> Route | Shortage:
        return self._desk.planner.route(self._intake.need(), self._prefix, self._history)

    def late(self, phase: str) -> None:
        """A phase took too long, or the whole. A newcomer's waiting in vain is no failure: it may come again."""
        if phase == WHOLE or self._clock.whole_ends_before(phase):
            error = deadline_error(self._generation.deadline_ms, self._clock.phase)
            self.end(DEADLINE, error, cancel=True)
        elif phase != QUEUE or (self.moved and self._route() is Shortage.FULL):
            self.end(DEADLINE, late_error(phase, self._clock.limit_s(phase)), cancel=True)
        elif self.moved:
            self.end(FAILED, lost_error(self._sending.tries[-1].reason))
        elif self._desk.hearing.deaf:
            self.end(REFUSED, silence_error())
        else:
            found = self._route()
            shortage = found if isinstance(found, Shortage) else Shortage.FULL
            self.end(REFUSED, shortage_error(shortage, self._intake.need(), self._desk.waiting.retry_after_s()))

    def _queue_error(self, reason: str) -> GatewayError:
        if self._desk.hearing.deaf:
            return silence_error()
        return later(Code.QUEUE_FULL, f"{reason}; try again later", self._desk.waiting.retry_after_s())

    def end(self, kind: str, error: GatewayError | None = None, *, cancel: bool = False) -> None:
        """Pronounce the one outcome. ``cancel``: workers may still hold something and are told."""
        if self._ended:
            return
        self._ended = True
        if self.moved and error is not None and error.status == 429:
            kind, error = FAILED, lost_error(error.code or "")
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
            journey=self.journey(),
            label=self._generation.label,
            kind=kind,
            phase=self._clock.phase,
            code=(error.code or "") if error is not None else "",
            message=error.message if error is not None else "",
            path=self.path,
            num_prompt_tokens=len(self._generation.prompt_ids),
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=self._intake.choices.num_output,
            num_wasted_tokens=self._intake.choices.num_wasted,
            spent_s=dict(self._clock.spent_s),
        )
