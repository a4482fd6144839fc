"""A request's current attempt at its workers: sent, held, renewed, asked after, left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.attempt import Attempt
from gateway.generation import Try
from gateway.phase_clock import DECODE, PREFILL, TRANSFER, PhaseClock
from runtime.logs import get_logger

if TYPE_CHECKING:
    from gateway.candidate import Need, Route
    from gateway.desk import Desk
    from gateway.generation import Generation
    from gateway.hearing import Timer
    from gateway.history import History
    from gateway.prefix import Prefix
    from protocol.messages import Peer, Resend, Tail

NO_LIMIT_S = 86_400.0
"""Repeats end with their attempt, whose deadlines stand still while the bus is silent; repeats don't."""

log = get_logger("gateway.sending")


class Sending:
    """At most one attempt at a time; everything that was started for it ends when it is left."""

    def __init__(
        self,
        desk: Desk,
        request_id: str,
        generation: Generation,
        prefix: Prefix,
        clock: PhaseClock,
        history: History,
    ) -> None:
        """Nothing is sent before ``start``. Notes in ``history`` whose numerics the tokens have."""
        self._loop = asyncio.get_running_loop()
        self._desk = desk
        self.request_id = request_id
        self._generation = generation
        self._prefix = prefix
        self._clock = clock
        self._history = history
        self.attempt: Attempt | None = None
        self._past: list[tuple[Route, str]] = []
        self._patience: Timer | None = None
        self.on_silent: Callable[[Peer], None] = lambda worker: None

    def current(self, sender: Peer, number: int) -> Attempt | None:
        """The attempt, if ``number`` is its and ``sender`` one of its workers."""
        attempt = self.attempt
        if attempt is None or attempt.number != number or not attempt.route.has(sender):
            return None
        return attempt

    @property
    def num_attempts(self) -> int:
        """Started so far."""
        return len(self._past) + (self.attempt is not None)

    @property
    def tries(self) -> tuple[Try, ...]:
        """All of them, in order."""
        now = [(self.attempt.route, "")] if self.attempt is not None else []
        return tuple(
            Try(route.path, route.prefill.id, route.decode.id, reason) for route, reason in (*self._past, *now)
        )

    def route_of(self, number: int) -> Route | None:
        """Where the attempt of this number went; ``None`` if there was none."""
        if self.attempt is not None and number == self.attempt.number:
            return self.attempt.route
        return self._past[number - 1][0] if 0 < number <= len(self._past) else None

    def served(self, sender: Peer) -> bool:
        """``sender`` is a worker of any attempt."""
        return self.serves(sender) or any(route.has(sender) for route, _ in self._past)

    def serves(self, sender: Peer) -> bool:
        """``sender`` is a worker of the current attempt, which replaces older ones there by itself."""
        return self.attempt is not None and self.attempt.route.has(sender)

    def start(self, route: Route, tails: tuple[Tail, ...], need: Need) -> None:
        """Leave the attempt before and begin the next one: both messages leave together."""
        self.leave("moved", stay=route.peers)
        attempt = self.attempt = Attempt(self.request_id, self.num_attempts + 1, route, tails)
        self._say_if_unlike(attempt)
        self._desk.planner.place(route, self.request_id, need, self._prefix)
        self._desk.metrics.routed(route.path)
        self._clock.enter(PREFILL)
        self._repeat("prefill", lambda: self._prefill_request(attempt))
        if attempt.reserves:
            self._repeat("reserve", lambda: self._reserve(attempt))
        self._be_patient(self._desk.settings.answer_s, lambda: self._unanswered(attempt))

    def accepted(self, attempt: Attempt, sender: Peer) -> None:
        """``sender`` holds the attempt: it needn't be told again, and wants its hold renewed."""
        attempt.answered.add(sender)
        if sender == attempt.route.prefill:
            self._desk.repeats.stop(("prefill", self.request_id))
        if sender == attempt.route.decode:
            self._desk.repeats.stop(("reserve", self.request_id))
        self._desk.in_flight.accepted(sender, self.request_id, self._loop.time())
        if not attempt.is_done_at(sender):
            self._desk.wants.add(sender, self.request_id, attempt.number)

    def heard(self, attempt: Attempt, sender: Peer) -> None:
        """Tokens say more than Accepted: the prefill worker is done, the decode worker has adopted."""
        if sender == attempt.route.decode:
            if not attempt.adopted:
                self._note_numerics(sender)
                self._adopted(attempt)
        elif not attempt.prefill_heard:
            attempt.prefill_heard = True
            self._note_numerics(sender)
            self.accepted(attempt, sender)
            if attempt.reserves and not attempt.adopted:
                self._clock.enter(TRANSFER)

    def ask(self, attempt: Attempt, doubted: Peer, message: Resend, on_silence: Callable[[], None]) -> None:
        """Ask for tokens that must have been made if the attempt goes on, or was done.

        Asked is who must have them: the decode worker if the prefill worker is ``doubted``, since it
        may have adopted, and else the doubted worker itself, whose last words may have been lost.
        """
        attempt.doubted = doubted
        asked = attempt.route.decode if attempt.reserves else doubted
        self._repeat("ask", lambda: self._desk.postbox.send(asked, message))
        self._be_patient(self._desk.settings.ask_s, on_silence)

    def leave(self, reason: str, *, stay: tuple[Peer, ...] = (), cancel: bool = True) -> None:
        """The attempt is over. Its workers are told to drop it, except those that ``stay``."""
        attempt, self.attempt = self.attempt, None
        if attempt is None:
            return
        self._past.append((attempt.route, attempt.reason))
        self._be_patient_no_more()
        for kind in ("prefill", "reserve", "ask"):
            self._desk.repeats.stop((kind, self.request_id))
        for peer in attempt.route.peers:
            self._desk.wants.drop(peer, self.request_id)
            self._desk.kept_out.left(peer, self.request_id)
            self._desk.in_flight.release(peer, self.request_id, self._loop.time())
            if cancel and peer not in stay:
                self._desk.cancels.cancel(peer, self.request_id, attempt.number, reason)

    def _adopted(self, attempt: Attempt) -> None:
        attempt.adopted, attempt.doubted = True, None
        self._be_patient_no_more()
        self.accepted(attempt, attempt.route.decode)
        self._desk.repeats.stop(("ask", self.request_id))
        self.worked(attempt)
        self._desk.planner.adopted(attempt.route.decode, self._prefix)
        self._clock.enter(DECODE)
        if not attempt.route.local:
            self._desk.repeats.stop(("prefill", self.request_id))
            self._desk.wants.drop(attempt.route.prefill, self.request_id)
            self._desk.in_flight.release(attempt.route.prefill, self.request_id, self._loop.time())

    def worked(self, attempt: Attempt) -> None:
        """Its workers have done what each of them can fail at: whoever was on probation is in again."""
        for peer in attempt.route.peers:
            self._desk.kept_out.worked(peer, self.request_id)

    def _unanswered(self, attempt: Attempt) -> None:
        """It was repeated all the time, and the bus was heard."""
        silent = [peer for peer in attempt.route.peers if peer not in attempt.answered]
        if silent and not attempt.adopted:
            self.on_silent(silent[0])

    def _say_if_unlike(self, attempt: Attempt) -> None:
        """Its tokens may come out otherwise than those it has already."""
        for peer in attempt.route.peers:
            numerics = self._desk.planner.numerics(peer)
            if not self._history.is_alike(numerics):
                log.warning(
                    "numerics_changed",
                    request_id=self.request_id,
                    attempt=attempt.number,
                    worker=peer.id,
                    numerics=numerics,
                    before=sorted(self._history.numerics),
                )
                return

    def _be_patient(self, seconds: float, on_silence: Callable[[], None]) -> None:
        """Give peers that much time, not counting what they couldn't be heard."""
        self._be_patient_no_more()
        self._patience = self._desk.hearing.timer(seconds, on_silence)

    def _be_patient_no_more(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _note_numerics(self, sender: Peer) -> None:
        """Tokens of the request are this worker's."""
        numerics = self._desk.planner.numerics(sender)
        if numerics:
            self._history.numerics.add(numerics)

    def _repeat(self, kind: str, send: Callable[[], None]) -> None:
        """Until the answer; the phase's own deadline and the worker's death end the attempt."""
        self._desk.repeats.start((kind, self.request_id), send, NO_LIMIT_S, lambda: None)

    def _prefill_request(self, attempt: Attempt) -> None:
        message = attempt.prefill_request(self._generation, self._clock)
        self._desk.postbox.send(attempt.route.prefill, message)

    def _reserve(self, attempt: Attempt) -> None:
        message = attempt.reserve(self._generation, self._clock)
        self._desk.postbox.send(attempt.route.decode, message)
