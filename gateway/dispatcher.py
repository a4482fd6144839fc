"""The dispatcher: the door between the HTTP side and the workers on the bus."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from gateway.acks import Acks
from gateway.affinity import Affinity
from gateway.cancels import Cancels
from gateway.desk import Desk
from gateway.dispatch_settings import DispatchSettings
from gateway.errors import from_code
from gateway.gaps import Gaps
from gateway.hearing import Hearing
from gateway.in_flight import InFlight
from gateway.kept_out import KeptOut
from gateway.outcome import CANCELLED, REFUSED, DispatchMetrics
from gateway.planner import Planner
from gateway.request import Request
from gateway.survey import survey
from gateway.told import MAX_TEXT_LEN
from gateway.waiting import Waiting
from gateway.wants import Wants
from protocol.errors import Code
from protocol.messages import Accepted, Cancel, Embedded, Failed, Refused, Released, TokenEvents
from runtime.logs import get_logger
from runtime.repeats import Repeats

if TYPE_CHECKING:
    from gateway.generation import Generation, Stream
    from gateway.health import Health
    from protocol.messages import Peer
    from runtime.postbox import Postbox
    from runtime.roster import Roster

LOOK_S = 0.5
"""How often the roster is looked through for newcomers: twice a heartbeat."""

log = get_logger("gateway.dispatcher")


class GatewayDispatcher:
    """A ``gateway.generation.Dispatcher``: one per gateway process.

    ``take`` of a stream may raise before the first update (a worker's refusal, a deadline), so the HTTP side
    waits for the first update before it sends a status.
    """

    def __init__(
        self,
        postbox: Postbox,
        roster: Roster,
        settings: DispatchSettings | None = None,
        metrics: DispatchMetrics | None = None,
    ) -> None:
        """Takes over Accepted, Refused, Failed, Released, Cancel, TokenEvents and Embedded. Needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._requests: dict[str, Request] = {}
        self._num_submitted = 0
        self._looked = -LOOK_S
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._desk = self._make_desk(postbox, roster, settings or DispatchSettings(), metrics or DispatchMetrics())
        postbox.on(Accepted, self._on_accepted)
        postbox.on(Refused, self._on_refused)
        postbox.on(Failed, self._on_failed)
        postbox.on(TokenEvents, self._on_tokens)
        postbox.on(Embedded, self._on_embedded)
        postbox.on(Cancel, self._on_cancel)
        roster.on_lost(self._on_lost)
        roster.on_changed(self._on_changed)

    async def submit(self, generation: Generation) -> Stream:
        """As ``Dispatcher`` promises; returns once the request was sent to its workers."""
        self._num_submitted += 1
        request = Request(self._desk, f"req-{secrets.token_hex(8)}", self._num_submitted, generation)
        self._requests[request.request_id] = request
        self._idle.clear()
        if self._draining:
            request.end(REFUSED, from_code(Code.DRAINING, "this gateway ends and takes nothing new; try again"))
        else:
            request.begin()
        try:
            await request.placed.wait()
        except asyncio.CancelledError:
            request.cancel("its client left")
            raise
        if request.error is not None:
            raise request.error
        return request

    def health(self) -> Health:
        """As ``Dispatcher`` promises."""
        desk = self._desk
        return survey(desk.planner, desk.kept_out, desk.hearing, draining=self._draining)

    def context_len(self) -> int:
        """As ``Dispatcher`` promises."""
        return self._desk.planner.context_len()

    async def drain(self, within_s: float) -> None:
        """Take nothing new, and return when every request has its outcome; those that take too long are cancelled."""
        self._draining = True
        log.info("draining", num_requests=len(self._requests), within_s=within_s)
        try:
            async with asyncio.timeout(within_s):
                await self._idle.wait()
        except TimeoutError:
            log.warning("drained_late", num_requests=len(self._requests))
            self._end_all()

    @property
    def num_requests(self) -> int:
        """Requests without an outcome, waiting ones included."""
        return len(self._requests)

    def counts(self) -> dict[str, int]:
        """What is kept for requests; all zero when there are none and the workers have answered."""
        desk = self._desk
        return {
            "requests": len(self._requests),
            "waiting": len(desk.waiting),
            "in_flight": len(desk.in_flight),
            "wanted": len(desk.wants),
            "cancels": len(desk.cancels),
            "acks": len(desk.acks),
            "gaps": len(desk.gaps),
            "probes": desk.kept_out.num_probes,
        }

    def close(self) -> None:
        """End what is open, tell the workers once, and stop all timers. Idempotent."""
        self._end_all()
        self._desk.hearing.close()
        self._desk.acks.flush()
        self._desk.wants.close()
        self._desk.repeats.close()

    def _make_desk(
        self,
        postbox: Postbox,
        roster: Roster,
        settings: DispatchSettings,
        metrics: DispatchMetrics,
    ) -> Desk:
        repeats = Repeats()
        in_flight = InFlight()
        kept_out = KeptOut(metrics)
        hearing = Hearing(roster, postbox.bus)
        max_age_s = settings.queue_s * settings.queue_age_share
        return Desk(
            postbox=postbox,
            repeats=repeats,
            planner=Planner(roster, Affinity(settings.max_affinity_blocks), in_flight, kept_out),
            in_flight=in_flight,
            hearing=hearing,
            kept_out=kept_out,
            waiting=Waiting(settings.max_waiting, max_age_s),
            acks=Acks(postbox, settings.ack_s),
            wants=Wants(postbox, settings.wanted_s),
            cancels=Cancels(postbox, roster, repeats, hearing, settings.cancel_s),
            gaps=Gaps(repeats, settings.gap_s),
            settings=settings,
            metrics=metrics,
            forget=self._forget,
        )

    def _end_all(self) -> None:
        """The outcome is a cancel, and the client hears that it may come again."""
        for request in list(self._requests.values()):
            request.end(CANCELLED, from_code(Code.DRAINING, "the gateway ends; try again"), cancel=True)

    def _forget(self, request_id: str) -> None:
        """It has its outcome; what it leaves may be room for the next one."""
        self._requests.pop(request_id, None)
        if not self._requests:
            self._idle.set()
        self._desk.waiting.pump()

    def _on_accepted(self, sender: Peer, message: Accepted) -> None:
        request = self._requests.get(message.request_id)
        if request is None or not request.accepted_by(sender, message.attempt):
            cancel = Cancel(message.request_id, message.attempt, "the attempt is over")
            self._desk.postbox.send(sender, cancel)

    def _on_refused(self, sender: Peer, message: Refused) -> None:
        request = self._requests.get(message.request_id)
        if request is not None:
            request.refused_by(sender, message)

    def _on_failed(self, sender: Peer, message: Failed) -> None:
        request = self._requests.get(message.request_id)
        if request is not None:
            request.failed_by(sender, message)

    def _on_embedded(self, sender: Peer, message: Embedded) -> None:
        request = self._requests.get(message.request_id)
        if request is None or not request.embedded_by(sender, message):
            cancel = Cancel(message.request_id, message.attempt, "the attempt is over")
            self._desk.postbox.send(sender, cancel)

    def _on_cancel(self, sender: Peer, message: Cancel) -> None:
        """An operator ends a request, whatever its attempt. Workers report, they don't cancel."""
        request = self._requests.get(message.request_id)
        if request is not None:
            if request.served_by(sender):
                log.warning("cancel_of_a_worker_ignored", worker=sender.id, request_id=message.request_id)
                return
            log.info("request_cancelled", request_id=message.request_id, by=sender.id, reason=message.reason)
            request.cancel(message.reason[:MAX_TEXT_LEN])
        self._desk.postbox.send(sender, Released(message.request_id, message.attempt))

    def _on_tokens(self, sender: Peer, message: TokenEvents) -> None:
        for event in message.events:
            request = self._requests.get(event.request_id)
            if request is not None:
                request.hear(sender, event)
            else:
                self._desk.acks.past_all(sender, event, cancel=True)
        self._desk.acks.flush_ripe()

    def _on_lost(self, worker: Peer) -> None:
        desk = self._desk
        for keeper in (desk.acks, desk.wants, desk.cancels, desk.in_flight, desk.planner, desk.kept_out):
            keeper.forget(worker)
        for request in list(self._requests.values()):
            request.lost(worker)

    def _on_changed(self) -> None:
        now = self._loop.time()
        if now - self._looked >= LOOK_S:
            self._looked = now
            self._desk.planner.look()
        self._desk.waiting.pump()
