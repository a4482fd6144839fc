"""Links move contents. One contract for all: a frame arrives whole or not at all, at most once.

Frames by one link come in the order in which they were sent. Those of a link that is made of two may not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from protocol import subjects
from protocol.messages import Peer
from runtime.bus import Bus, Subscription
from runtime.errors import PayloadTooLarge

Buffer: TypeAlias = bytes | memoryview
Frame: TypeAlias = Sequence[Buffer]
"""A frame to send: contiguous stretches of bytes, one after the other. None is kept once ``send`` has returned."""

FrameHandler = Callable[[memoryview], None]
"""Takes a frame on the event loop. Its bytes are nobody else's, and last until the handler returns."""


def frame_bytes(frame: Frame) -> int:
    """Bytes of a whole frame."""
    return sum([part.nbytes if isinstance(part, memoryview) else len(part) for part in frame])


@dataclass(slots=True)
class LinkCounters:
    """What one link has moved since it was made, in frames' bytes; only the link writes, anybody may read."""

    sent_bytes: int = 0
    received_bytes: int = 0


class Link(Protocol):
    """Frames to named workers."""

    name: str

    @property
    def max_frame_bytes(self) -> int:
        """The longest frame that ``send`` takes."""

    @property
    def burst_bytes(self) -> int:
        """About as much as may be sent between two calls of ``drain``; 0: one frame."""

    @property
    def counters(self) -> Mapping[str, LinkCounters]:
        """By name: of this link, or of those that it is made of."""

    @property
    def fallbacks(self) -> Mapping[str, int]:
        """How many frames didn't go by the better link, by reason."""

    @property
    def sharing(self) -> Sequence[str]:
        """Ids of the workers that are reached past the bus just now."""

    def offer(self, to: Peer) -> None:
        """Say that frames for this life of a worker will come, so that what must be agreed on is."""

    def send(self, to: Peer, frame: Frame, *, again: bool = False) -> str:
        """Queue a frame; it may be lost. Returns the name of the link that took it. Raises ``PayloadTooLarge``.

        ``again``: it went before and didn't arrive. A link made of two takes the other one then.
        """

    async def drain(self, to: Peer) -> None:
        """Return when what was sent to ``to`` has left this process: the sender's back-pressure."""

    async def receive(self, me: Peer, handler: FrameHandler) -> None:
        """Hand frames for this worker to ``handler`` from now on."""

    def lost(self, peer: Peer) -> None:
        """This life of a worker is over: what is kept for it is free."""

    async def close(self) -> None:
        """Send and receive nothing more. Idempotent."""


class PlainLink:
    """What a link is that needs no agreement and shares no memory."""

    name: str
    burst_bytes = 0
    sharing: Sequence[str] = ()

    def __init__(self, name: str) -> None:
        """Counts under ``name``."""
        self.name = name
        self.fallbacks: dict[str, int] = {}
        self.counters = {name: LinkCounters()}
        self._counted = self.counters[name]

    def offer(self, to: Peer) -> None:
        """There is nothing to agree on."""

    def lost(self, peer: Peer) -> None:
        """Nothing is kept for a peer."""


class BusLink(PlainLink):
    """Contents over a bus connection of their own, so that control never waits behind bytes."""

    def __init__(self, bus: Bus, name: str = "nats", *, instead: str = "") -> None:
        """``bus`` belongs to this link and is closed with it. ``instead``: why a better link isn't taken, if so."""
        super().__init__(name)
        self.bus = bus
        self._instead = instead
        if instead:
            self.fallbacks = {instead: 0}
        self._subscription: Subscription | None = None

    @property
    def max_frame_bytes(self) -> int:
        """The server's payload limit."""
        return self.bus.max_payload

    def send(self, to: Peer, frame: Frame, *, again: bool = False) -> str:
        """Queue a frame."""
        payload = b"".join(frame)
        self.bus.publish(subjects.contents(to.id), payload)
        self._counted.sent_bytes += len(payload)
        if self._instead:
            self.fallbacks[self._instead] += 1
        return self.name

    async def drain(self, to: Peer) -> None:
        """Return when the server has what was sent."""
        await self.bus.drain()

    async def receive(self, me: Peer, handler: FrameHandler) -> None:
        """Subscribe; returns when the server knows."""

        def taken(_: str, frame: bytes) -> None:
            self._counted.received_bytes += len(frame)
            handler(memoryview(frame))

        self._subscription = self.bus.subscribe(subjects.contents(me.id), taken)
        await self.bus.ready()

    async def close(self) -> None:
        """Close the connection."""
        if self._subscription is not None:
            self._subscription.close()
        await self.bus.close()


class MemoryExchange:
    """What memory links of one process share: who receives for which worker."""

    def __init__(self) -> None:
        """Nobody yet."""
        self.handlers: dict[str, FrameHandler] = {}


class MemoryLink(PlainLink):
    """The in-process twin: frames go to the receiver's handler through the event loop."""

    def __init__(self, exchange: MemoryExchange, max_frame_bytes: int = 1 << 20) -> None:
        """``exchange`` is shared by all links that can reach each other."""
        super().__init__("memory")
        self.max_frame_bytes = max_frame_bytes
        self._exchange = exchange
        self._waiting: list[tuple[str, bytes]] = []
        self._receiving: set[str] = set()

    def send(self, to: Peer, frame: Frame, *, again: bool = False) -> str:
        """Queue a frame for the next ``drain``."""
        payload = b"".join(frame)
        if len(payload) > self.max_frame_bytes:
            raise PayloadTooLarge(to.id, len(payload), self.max_frame_bytes)
        self._waiting.append((to.id, payload))
        self._counted.sent_bytes += len(payload)
        return self.name

    async def drain(self, to: Peer) -> None:
        """Deliver what waits, in order."""
        waiting, self._waiting = self._waiting, []
        for worker_id, frame in waiting:
            handler = self._exchange.handlers.get(worker_id)
            if handler is not None:
                handler(memoryview(frame))

    async def receive(self, me: Peer, handler: FrameHandler) -> None:
        """Register with the exchange."""

        def taken(frame: memoryview) -> None:
            self._counted.received_bytes += len(frame)
            handler(frame)

        self._exchange.handlers[me.id] = taken
        self._receiving.add(me.id)

    async def close(self) -> None:
        """Leave the exchange."""
        for worker_id in self._receiving:
            self._exchange.handlers.pop(worker_id, None)
        self._receiving.clear()
