"""Refusals, failures and deaths: what each of them makes of a request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from gateway.ladder import Step, Word, culprit, judge, worker_error
from gateway.outcome import DEADLINE, FAILED, REFUSED
from protocol.messages import Resend
from runtime.logs import get_logger

if TYPE_CHECKING:
    from gateway.attempt import Attempt
    from gateway.desk import Desk
    from gateway.errors import GatewayError
    from gateway.intake import Intake
    from gateway.phase_clock import PhaseClock
    from gateway.planner import History
    from gateway.sending import Sending

MAX_REFUSALS = 256
"""Waiting bounds a request that is refused now and again; this bounds one that is refused at once,
each time by another worker."""

log = get_logger("gateway.attempt")


class Life(Protocol):
    """The request, as far as an objection can change it."""

    def move(self, kind: str, error: GatewayError) -> None:
        """On to another pair, or into the queue; ``kind`` and ``error`` are the end if there is none."""

    def end(self, kind: str, error: GatewayError | None = None, *, cancel: bool = False) -> None:
        """Pronounce the outcome."""


class Objections:
    """Counts what one request has met, so that it ends."""

    def __init__(
        self,
        desk: Desk,
        sending: Sending,
        intake: Intake,
        clock: PhaseClock,
        history: History,
        life: Life,
    ) -> None:
        """The request's own parts."""
        self._desk = desk
        self._sending = sending
        self._intake = intake
        self._clock = clock
        self._history = history
        self._life = life
        self._num_failures = 0
        self._num_refusals = 0

    def hear(self, number: int, word: Word) -> None:
        """Act on a worker's word about the attempt of this number; an old one changes nothing."""
        attempt = self._sending.current(word.worker, number)
        if attempt is None:
            return
        step = judge(attempt, word)
        if step is Step.DOUBT:
            self._doubt(attempt, word)
        elif step is Step.ELSEWHERE:
            self._go_elsewhere(attempt, word)
        elif step is Step.AGAIN:
            self._try_again(attempt, word)
        elif step is not Step.IGNORE:
            self._note(attempt, word)
            kind = DEADLINE if step is Step.LATE else FAILED
            kind = REFUSED if word.refused else kind
            self._life.end(kind, worker_error(word), cancel=True)

    def _doubt(self, attempt: Attempt, word: Word) -> None:
        """Unsure: ask first. A second worker that knows nothing of the attempt settles it."""
        if attempt.doubted == word.worker:
            return
        if attempt.doubted is not None:
            self._try_again(attempt, word)
            return
        live = self._intake.choices.live[0]
        start = live.next_index if attempt.adopted else attempt.first_index(live.choice)
        message = Resend(self._sending.request_id, attempt.number, live.choice, start)
        self._sending.ask(attempt, word.worker, message, lambda: self._try_again(attempt, word))

    def _go_elsewhere(self, attempt: Attempt, word: Word) -> None:
        """One worker has no room: the next one, with what the other one has computed or reserved."""
        full = culprit(attempt, word)
        self._note(attempt, word)
        self._desk.metrics.refused("decode" if full == attempt.route.decode else "prefill", word.code)
        self._num_refusals += 1
        if self._num_refusals > MAX_REFUSALS:
            self._life.end(REFUSED, worker_error(word), cancel=True)
            return
        self._history.refusals[full] = (asyncio.get_running_loop().time(), word.code)
        self._history.prefer = set(attempt.route.peers) - {full}
        self._life.move(REFUSED, worker_error(word))

    def _try_again(self, attempt: Attempt, word: Word) -> None:
        """The next step of the ladder: another attempt, from the tokens that were accepted."""
        self._note(attempt, word)
        self._num_failures += 1
        if self._num_failures >= self._desk.settings.max_attempts:
            self._life.end(FAILED, worker_error(word), cancel=True)
            return
        self._desk.metrics.moved(self._clock.phase, word.code)
        failed = culprit(attempt, word)
        self._history.failed.add(failed)
        self._history.prefer = set(attempt.route.peers) - {failed}
        self._life.move(FAILED, worker_error(word))

    def _note(self, attempt: Attempt, word: Word) -> None:
        log.warning(
            "attempt_refused" if word.refused else "attempt_failed",
            request_id=self._sending.request_id,
            attempt=attempt.number,
            worker=word.worker.id,
            phase=word.phase,
            code=word.code,
            message=word.text,
        )
