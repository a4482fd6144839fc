"""Refusals, failures and deaths: what each of them makes of a request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from gateway.ladder import GIVEN_BACK, Source, Step, Word, culprit, is_own_fault, judge
from gateway.outcome import FAILED, REFUSED
from gateway.phase_clock import DECODE, PREFILL, TRANSFER
from gateway.told import crash_error, worker_error
from protocol.errors import Code
from protocol.messages import Resend
from runtime.logs import get_logger

if TYPE_CHECKING:
    from gateway.attempt import Attempt
    from gateway.candidate import Route
    from gateway.desk import Desk
    from gateway.errors import GatewayError
    from gateway.history import History
    from gateway.intake import Intake
    from gateway.phase_clock import PhaseClock
    from gateway.sending import Sending
    from protocol.messages import Peer

MAX_REFUSALS = 256
"""Waiting bounds a request that is refused now and again; this bounds one that is refused at once,
each time by another worker."""
MAX_ENGINE_FAILURES = 2
"""The second one is the request's own doing, or the model's."""
MAX_CRASHES = 2
"""Lives of workers that may end over one request before it is the request's own doing."""

log = get_logger("gateway.attempt")


class Life(Protocol):
    """The request, as far as an objection can change it."""

    def move(self, kind: str, error: GatewayError, *, moved: bool) -> None:
        """On to another pair, or into the queue; ``kind`` and ``error`` are the end if there is none.

        ``moved``: it goes ahead of new ones from now on.
        """

    def end(self, kind: str, error: GatewayError | None = None, *, cancel: bool = False) -> None:
        """Pronounce the outcome."""

    def late(self, phase: str) -> None:
        """A phase took too long."""


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
        self._num_engine_failures = 0
        self._num_given_back = 0
        self._num_refusals = 0

    def hear(self, number: int, word: Word) -> None:
        """Act on a word about the attempt of this number; an old one changes nothing but a crash."""
        if word.code is Code.CRASHED and self._is_last_crash(number, word):
            self._life.end(FAILED, crash_error(len(self._history.crashed)), cancel=True)
            return
        attempt = self._sending.current(word.worker, number)
        if attempt is None:
            return
        step = judge(attempt, word)
        if step is Step.DOUBT:
            self._doubt(attempt, word)
        elif step is Step.ELSEWHERE:
            self._go_elsewhere(attempt, word)
        elif step in (Step.AGAIN, Step.GIVEN_BACK):
            self._give_up(attempt, word)
        elif step is not Step.IGNORE:
            self._end(attempt, word, step)

    def silent(self, worker: Peer) -> None:
        """A worker that is heard hasn't answered the current attempt in all its time."""
        text = f"worker {worker.id} doesn't answer"
        word = Word(worker, self._clock.phase, Code.WORKER_LOST, text, Source.SILENT)
        self.hear(self._sending.num_attempts, word)

    def _is_last_crash(self, number: int, word: Word) -> bool:
        """Count each life once, whichever of a pair tells of it, and however late."""
        route = self._sending.route_of(number)
        if route is None or not route.has(word.worker):
            return False
        self._history.crashed.add(culprit(route, word))
        return len(self._history.crashed) >= MAX_CRASHES

    def _doubt(self, attempt: Attempt, word: Word) -> None:
        """Unsure: ask first. A second worker that knows nothing of the attempt settles it."""
        if attempt.doubted == word.worker:
            return
        if attempt.doubted is not None:
            self._give_up(attempt, word)
            return
        live = self._intake.choices.live[0]
        start = live.next_index if attempt.adopted else attempt.first_index(live.choice)
        message = Resend(self._sending.request_id, attempt.number, live.choice, start)
        self._sending.ask(attempt, word.worker, message, lambda: self._give_up(attempt, word))

    def _go_elsewhere(self, attempt: Attempt, word: Word) -> None:
        """One worker has no room: the next one, with what the other one has computed or reserved."""
        full = self._note(attempt, word)
        self._desk.metrics.refused(_role(attempt.route, full), word.code)
        self._num_refusals += 1
        if self._num_refusals > MAX_REFUSALS:
            self._life.end(REFUSED, worker_error(word), cancel=True)
            return
        self._refused(full, word)
        self._history.prefer = set(attempt.route.peers) - {full}
        self._life.move(REFUSED, worker_error(word), moved=self._intake.choices.begun)

    def _give_up(self, attempt: Attempt, word: Word) -> None:
        """The next step of the ladder: another attempt, from the tokens that were accepted."""
        failed = self._note(attempt, word)
        if word.code in GIVEN_BACK:
            self._refused(failed, word)
            self._history.gave_back = failed
            self._num_given_back += 1
        else:
            self._history.failed.add(failed)
            self._num_failures += 1
            self._num_engine_failures += word.code is Code.ENGINE
            if is_own_fault(word):
                role = _role(attempt.route, failed)
                self._desk.kept_out.failed(failed, role, self._sending.request_id, word.code)
        if self._is_enough():
            self._life.end(FAILED, worker_error(word), cancel=True)
            return
        self._desk.metrics.moved(self._clock.phase, word.code)
        self._history.prefer = set(attempt.route.peers) - {failed}
        self._life.move(FAILED, worker_error(word), moved=True)

    def _is_enough(self) -> bool:
        settings = self._desk.settings
        return (
            self._num_failures >= settings.max_attempts
            or self._num_engine_failures >= MAX_ENGINE_FAILURES
            or self._num_given_back > settings.max_given_back
        )

    def _end(self, attempt: Attempt, word: Word, step: Step) -> None:
        self._note(attempt, word)
        if step is Step.LATE:
            self._life.late(word.phase if word.phase in (PREFILL, TRANSFER, DECODE) else self._clock.phase)
        else:
            self._life.end(REFUSED if word.refused else FAILED, worker_error(word), cancel=True)

    def _refused(self, worker: Peer, word: Word) -> None:
        """It gets this request again when a later heartbeat shows room."""
        self._history.refusals[worker] = (asyncio.get_running_loop().time(), word.code)

    def _note(self, attempt: Attempt, word: Word) -> Peer:
        """Write it down; return the worker to do without."""
        worker = culprit(attempt.route, word, adopted=attempt.adopted)
        attempt.reason = word.code.value
        log.warning(
            "attempt_refused" if word.refused else "attempt_failed",
            request_id=self._sending.request_id,
            attempt=attempt.number,
            worker=worker.id,
            said_by=word.worker.id,
            phase=word.phase,
            code=word.code,
            message=word.text,
        )
        return worker


def _role(route: Route, worker: Peer) -> str:
    return "decode" if worker == route.decode else "prefill"
