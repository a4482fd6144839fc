"""A request's current attempt at its workers: sent, held, renewed, asked after, left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.attempt import Attempt
from gateway.phase_clock import DECODE, PREFILL, TRANSFER, PhaseClock

if TYPE_CHECKING:
    from gateway.candidate import Need, Route
    from gateway.desk import Desk
    from gateway.generation import Generation
    from gateway.planner import Prefix
    from protocol.messages import Peer, Resend, Tail


class Sending:
    """At most one attempt at a time; everything that was started for it ends when it is left."""

    def __init__(
        self,
        desk: Desk,
        request_id: str,
        generation: Generation,
        prefix: Prefix,
        clock: PhaseClock,
    ) -> None:
        """Nothing is sent before ``start``."""
        self._loop = asyncio.get_running_loop()
        self._desk = desk
        self.request_id = request_id
        self._generation = generation
        self._prefix = prefix
        self._clock = clock
        self.attempt: Attempt | None = None
        self.last_route: Route | None = None
        self.num_attempts = 0

    def current(self, sender: Peer, number: int) -> Attempt | None:
        """The attempt, if ``number`` is its and ``sender`` one of its workers."""
        attempt = self.attempt
        if attempt is None or attempt.number != number or sender not in attempt.route.peers:
            return None
        return attempt

    def serves(self, sender: Peer) -> bool:
        """``sender`` is a worker of the current attempt, which replaces older ones there by itself."""
        return self.attempt is not None and sender in self.attempt.route.peers

    def start(self, route: Route, tails: tuple[Tail, ...], need: Need) -> None:
        """Leave the attempt before and begin the next one: both messages leave together."""
        self.leave("moved", stay=route.peers)
        self.num_attempts += 1
        attempt = Attempt(self.request_id, self.num_attempts, route, tails)
        self.attempt, self.last_route = attempt, route
        self._desk.planner.place(route, self.request_id, need, self._prefix)
        self._desk.metrics.routed(route.path)
        self._clock.enter(PREFILL)
        self._repeat("prefill", lambda: self._prefill_request(attempt))
        if attempt.reserves:
            self._repeat("reserve", lambda: self._reserve(attempt))

    def accepted(self, attempt: Attempt, sender: Peer) -> None:
        """``sender`` holds the attempt: it needn't be told again, and wants its hold renewed."""
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
                self._adopted(attempt)
        elif not attempt.prefill_heard:
            attempt.prefill_heard = True
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
        self._desk.repeats.start(
            ("ask", self.request_id),
            lambda: self._desk.postbox.send(asked, message),
            self._desk.settings.ask_s,
            on_silence,
        )

    def leave(self, reason: str, *, stay: tuple[Peer, ...] = (), cancel: bool = True) -> None:
        """The attempt is over. Its workers are told to drop it, except those that ``stay``."""
        attempt, self.attempt = self.attempt, None
        if attempt is None:
            return
        for kind in ("prefill", "reserve", "ask"):
            self._desk.repeats.stop((kind, self.request_id))
        for peer in attempt.route.peers:
            self._desk.wants.drop(peer, self.request_id)
            self._desk.in_flight.release(peer, self.request_id, self._loop.time())
            if cancel and peer not in stay:
                self._desk.cancels.cancel(peer, self.request_id, attempt.number, reason)

    def _adopted(self, attempt: Attempt) -> None:
        attempt.adopted, attempt.doubted = True, None
        self.accepted(attempt, attempt.route.decode)
        self._desk.repeats.stop(("ask", self.request_id))
        self._desk.planner.adopted(attempt.route.decode, self._prefix)
        self._clock.enter(DECODE)
        if not attempt.route.local:
            self._desk.repeats.stop(("prefill", self.request_id))
            self._desk.wants.drop(attempt.route.prefill, self.request_id)
            self._desk.in_flight.release(attempt.route.prefill, self.request_id, self._loop.time())

    def _repeat(self, kind: str, send: Callable[[], None]) -> None:
        """Until the answer; the phase's own deadline and the worker's death end the attempt."""
        within_s = self._clock.limit_s(PREFILL)
        self._desk.repeats.start((kind, self.request_id), send, within_s, lambda: None)

    def _prefill_request(self, attempt: Attempt) -> None:
        message = attempt.prefill_request(self._generation, self._clock)
        self._desk.postbox.send(attempt.route.prefill, message)

    def _reserve(self, attempt: Attempt) -> None:
        message = attempt.reserve(self._generation, self._clock)
        self._desk.postbox.send(attempt.route.decode, message)
