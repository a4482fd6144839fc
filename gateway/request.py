"""One request's life: from the queue over its attempts to its one outcome."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.candidate import Need, Route, Shortage
from gateway.errors import GatewayError, from_code
from gateway.intake import Intake
from gateway.ladder import blamed, is_final, refusal_is_final, shortage_error, worker_error
from gateway.outcome import CANCELLED, DEADLINE, FAILED, FINISHED, REFUSED, Outcome
from gateway.phase_clock import QUEUE, PhaseClock
from gateway.planner import History, Prefix
from gateway.sending import Sending
from protocol.errors import Code
from runtime.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.attempt import Attempt
    from gateway.desk import Desk
    from gateway.generation import Generation, Update
    from protocol.messages import Failed, Peer, Refused, TokenEvent

MAX_REFUSALS = 256
"""Waiting bounds a request that is refused now and again; this bounds one that is refused at once,
each time by another worker."""

log = get_logger("gateway.request")


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
        self._num_failures = 0
        self._num_refusals = 0
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
            self._end(FINISHED, cancel=True)

    def cancel(self, reason: str) -> None:
        """As ``Stream`` promises."""
        self._end(CANCELLED, from_code(Code.CANCELLED, reason), cancel=True)

    def begin(self) -> None:
        """Send it, queue it, or end it at once. ``placed`` is set when it was sent or has ended."""
        self._clock.enter(QUEUE)
        found = self._route()
        if isinstance(found, Shortage) and found is not Shortage.FULL:
            self._end(REFUSED, shortage_error(found, self._need()))
        elif isinstance(found, Route) and not len(self._desk.waiting):
            self._start(found)
        elif self._desk.waiting.full:
            text = f"{len(self._desk.waiting)} requests are waiting already; try again later"
            self._end(REFUSED, from_code(Code.QUEUE_FULL, text))
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
        self._end(REFUSED, shortage_error(found, self._need()))
        return True

    def accepted_by(self, sender: Peer, number: int) -> bool:
        """A worker holds an attempt. False if it isn't wanted there."""
        attempt = self._sending.current(sender, number)
        if attempt is not None:
            self._sending.accepted(attempt, sender)
        return attempt is not None

    def refused_by(self, sender: Peer, message: Refused) -> None:
        """A worker doesn't take the attempt: the next one, with what the others have."""
        attempt = self._sending.current(sender, message.attempt)
        if attempt is None or attempt.adopted:
            return
        role = "prefill" if sender == attempt.route.prefill else "decode"
        self._desk.metrics.refused(role, message.code)
        log.info(
            "attempt_refused",
            request_id=self.request_id,
            attempt=attempt.number,
            worker=sender.id,
            code=message.code,
        )
        self._num_refusals += 1
        error = worker_error(message.code, message.message)
        if refusal_is_final(message.code) or self._num_refusals > MAX_REFUSALS:
            self._end(REFUSED, error, cancel=True)
            return
        self._history.refusals[sender] = (asyncio.get_running_loop().time(), message.code)
        self._history.prefer = set(attempt.route.peers) - {sender}
        self._move(REFUSED, error)

    def failed_by(self, sender: Peer, message: Failed) -> None:
        """A worker gives the attempt up."""
        attempt = self._sending.current(sender, message.attempt)
        if attempt is None or attempt.is_done_at(sender):
            return
        if is_final(message.code) or message.code == Code.DEADLINE:
            self._log_failure(attempt, sender, message.code, message.message)
            kind = DEADLINE if message.code == Code.DEADLINE else FAILED
            self._end(kind, worker_error(message.code, message.message), cancel=True)
        else:
            self._trouble(attempt, sender, message.code, message.message)

    def lost(self, worker: Peer) -> None:
        """A worker's life is over."""
        attempt = self._sending.attempt
        if attempt is None or worker not in attempt.route.peers or attempt.is_done_at(worker):
            return
        self._trouble(attempt, worker, Code.WORKER_LOST, f"worker {worker.id} was lost")

    def take(self, sender: Peer, event: TokenEvent) -> None:
        """New tokens of a choice."""
        attempt = self._sending.current(sender, event.attempt)
        if attempt is None:
            self._desk.acks.stray(sender, event.request_id, event.attempt, event.choice)
            return
        self._sending.heard(attempt, sender)
        if not self._intake.take(attempt, sender, event):
            error = worker_error(Code.ENGINE, "")
            self._end(FAILED, error, cancel=True)
        elif not self._intake.choices.live:
            self._end(FINISHED)

    def _trouble(self, attempt: Attempt, worker: Peer, code: str, text: str) -> None:
        """The attempt can't go on there, unless the decode worker turns out to have it already."""
        unsure = attempt.prefill_heard or code == Code.UNKNOWN
        if attempt.reserves and attempt.is_prefill_only(worker) and unsure:
            choice = self._intake.choices.live[0].choice
            self._sending.ask(attempt, choice, lambda: self._climb(attempt, worker, code, text))
        else:
            self._climb(attempt, worker, code, text)

    def _climb(self, attempt: Attempt, worker: Peer, code: str, text: str) -> None:
        """The next step of the ladder: another attempt, from the tokens that were accepted."""
        self._log_failure(attempt, worker, code, text)
        self._num_failures += 1
        if self._num_failures >= self._desk.settings.max_attempts:
            self._end(FAILED, worker_error(code, text), cancel=True)
            return
        self._desk.metrics.moved(self._clock.phase, code)
        culprit = blamed(worker, code, attempt.route)
        self._history.failed.add(culprit)
        self._history.prefer = set(attempt.route.peers) - {culprit}
        self._move(FAILED, worker_error(code, text))

    def _move(self, kind: str, error: GatewayError) -> None:
        """On to another pair, or into the queue; ``kind`` and ``error`` are the end if there is none."""
        self._intake.new_attempt()
        if not self._intake.choices.live:
            self._end(FINISHED, cancel=True)
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
            self._end(kind, error, cancel=True)

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
            self._end(DEADLINE, from_code(Code.DEADLINE, text), cancel=True)
            return
        found = self._route()
        shortage = found if isinstance(found, Shortage) else Shortage.FULL
        kind = FAILED if self._intake.choices.begun else REFUSED
        self._end(kind, shortage_error(shortage, self._need()))

    def _end(self, kind: str, error: GatewayError | None = None, *, cancel: bool = False) -> None:
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
        self._desk.forget(self.request_id)
        outcome = self._outcome(kind, error)
        outcome.log()
        self._desk.metrics.ended(outcome)

    def _outcome(self, kind: str, error: GatewayError | None) -> Outcome:
        route = self._sending.last_route
        return Outcome(
            request_id=self.request_id,
            label=self._generation.label,
            kind=kind,
            phase=self._clock.phase,
            code=(error.code or "") if error is not None else "",
            message=error.message if error is not None else "",
            path=self.path,
            last_path=route.path if route is not None else "",
            prefill=route.prefill.id if route is not None else "",
            decode=route.decode.id if route is not None else "",
            num_attempts=self.num_attempts,
            num_prompt_tokens=len(self._generation.prompt_ids),
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=self._intake.choices.num_output,
            num_wasted_tokens=self._intake.choices.num_wasted,
            spent_s=dict(self._clock.spent_s),
        )

    def _log_failure(self, attempt: Attempt, worker: Peer, code: str, text: str) -> None:
        log.warning(
            "attempt_failed",
            request_id=self.request_id,
            attempt=attempt.number,
            worker=worker.id,
            phase=self._clock.phase,
            code=code,
            message=text,
        )
