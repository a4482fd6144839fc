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
from gateway.gaps import Gaps
from gateway.in_flight import InFlight
from gateway.outcome import DispatchMetrics
from gateway.planner import Planner
from gateway.request import Request
from gateway.waiting import Waiting
from gateway.wants import Wants
from protocol.messages import Accepted, Cancel, Failed, Refused, TokenEvents
from runtime.repeats import Repeats

if TYPE_CHECKING:
    from gateway.generation import Generation, Stream
    from protocol.messages import Peer
    from runtime.postbox import Postbox
    from runtime.roster import Roster

LOOK_S = 0.5
"""How often the roster is looked through for newcomers: twice a heartbeat."""


class GatewayDispatcher:
    """A ``gateway.generation.Dispatcher``: one per gateway process.

    ``updates()`` of a stream may raise before the first update (a worker's refusal, a deadline), so
    the HTTP side awaits the first update before it sends a status.
    """

    def __init__(
        self,
        postbox: Postbox,
        roster: Roster,
        settings: DispatchSettings | None = None,
        metrics: DispatchMetrics | None = None,
    ) -> None:
        """Takes over Accepted, Refused, Failed, Released and TokenEvents. Needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._requests: dict[str, Request] = {}
        self._num_submitted = 0
        self._looked = -LOOK_S
        self._desk = self._make_desk(postbox, roster, settings or DispatchSettings(), metrics or DispatchMetrics())
        postbox.on(Accepted, self._on_accepted)
        postbox.on(Refused, self._on_refused)
        postbox.on(Failed, self._on_failed)
        postbox.on(TokenEvents, self._on_tokens)
        roster.on_lost(self._on_lost)
        roster.on_changed(self._on_changed)

    async def submit(self, generation: Generation) -> Stream:
        """As ``Dispatcher`` promises; returns once the request was sent to its workers."""
        self._num_submitted += 1
        request = Request(self._desk, f"req-{secrets.token_hex(8)}", self._num_submitted, generation)
        self._requests[request.request_id] = request
        request.begin()
        try:
            await request.placed.wait()
        except asyncio.CancelledError:
            request.cancel("its client left")
            raise
        if request.error is not None:
            raise request.error
        return request

    def ready(self) -> tuple[str, list[str], int, int]:
        """As ``Dispatcher`` promises."""
        return self._desk.planner.ready()

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
        }

    def close(self) -> None:
        """End what is open, tell the workers once, and stop all timers. Idempotent."""
        for request in list(self._requests.values()):
            request.cancel("the gateway ends")
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
        return Desk(
            postbox=postbox,
            repeats=repeats,
            planner=Planner(roster, Affinity(settings.max_affinity_blocks), in_flight),
            in_flight=in_flight,
            waiting=Waiting(settings.max_waiting),
            acks=Acks(postbox, settings.ack_s),
            wants=Wants(postbox, settings.wanted_s),
            cancels=Cancels(postbox, roster, repeats, settings.cancel_s),
            gaps=Gaps(repeats, settings.gap_s),
            settings=settings,
            metrics=metrics,
            forget=self._forget,
        )

    def _forget(self, request_id: str) -> None:
        """It has its outcome; what it leaves may be room for the next one."""
        self._requests.pop(request_id, None)
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

    def _on_tokens(self, sender: Peer, message: TokenEvents) -> None:
        for event in message.events:
            request = self._requests.get(event.request_id)
            if request is not None:
                request.take(sender, event)
            else:
                self._desk.acks.past_all(sender, event, cancel=True)

    def _on_lost(self, worker: Peer) -> None:
        desk = self._desk
        for keeper in (desk.acks, desk.wants, desk.cancels, desk.in_flight, desk.planner):
            keeper.forget(worker)
        for request in list(self._requests.values()):
            request.lost(worker)

    def _on_changed(self) -> None:
        now = self._loop.time()
        if now - self._looked >= LOOK_S:
            self._looked = now
            self._desk.planner.look()
        self._desk.waiting.pump()
