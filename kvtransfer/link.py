"""Links move contents. One contract for all: a frame arrives whole or not at all, at most once, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from protocol import subjects
from runtime.bus import Bus, Subscription
from runtime.errors import PayloadTooLarge

FrameHandler = Callable[[bytes], None]


class Link(Protocol):
    """Frames to named workers."""

    name: str

    @property
    def max_frame_bytes(self) -> int:
        """The longest frame that ``send`` takes."""

    def send(self, worker_id: str, frame: bytes) -> None:
        """Queue a frame; it may be lost. Raises ``PayloadTooLarge``."""

    async def drain(self) -> None:
        """Return when what was sent has left this process: the sender's back-pressure."""

    async def receive(self, worker_id: str, handler: FrameHandler) -> None:
        """Hand frames for ``worker_id`` to ``handler`` from now on."""

    async def close(self) -> None:
        """Send and receive nothing more. Idempotent."""


class BusLink:
    """Contents over a bus connection of their own, so that control never waits behind bytes."""

    def __init__(self, bus: Bus, name: str = "nats") -> None:
        """``bus`` belongs to this link and is closed with it."""
        self.name = name
        self.bus = bus
        self._subscription: Subscription | None = None

    @property
    def max_frame_bytes(self) -> int:
        """The server's payload limit."""
        return self.bus.max_payload

    def send(self, worker_id: str, frame: bytes) -> None:
        """Queue a frame."""
        self.bus.publish(subjects.contents(worker_id), frame)

    async def drain(self) -> None:
        """Return when the server has what was sent."""
        await self.bus.drain()

    async def receive(self, worker_id: str, handler: FrameHandler) -> None:
        """Subscribe; returns when the server knows."""
        self._subscription = self.bus.subscribe(subjects.contents(worker_id), lambda _, frame: handler(frame))
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


class MemoryLink:
    """The in-process twin: frames go to the receiver's handler through the event loop."""

    name = "memory"

    def __init__(self, exchange: MemoryExchange, max_frame_bytes: int = 1 << 20) -> None:
        """``exchange`` is shared by all links that can reach each other."""
        self._max_frame_bytes = max_frame_bytes
        self._exchange = exchange
        self._waiting: list[tuple[str, bytes]] = []
        self._receiving: set[str] = set()

    @property
    def max_frame_bytes(self) -> int:
        """As made."""
        return self._max_frame_bytes

    def send(self, worker_id: str, frame: bytes) -> None:
        """Queue a frame for the next ``drain``."""
        if len(frame) > self.max_frame_bytes:
            raise PayloadTooLarge(worker_id, len(frame), self.max_frame_bytes)
        self._waiting.append((worker_id, frame))

    async def drain(self) -> None:
        """Deliver what waits, in order."""
        waiting, self._waiting = self._waiting, []
        for worker_id, frame in waiting:
            handler = self._exchange.handlers.get(worker_id)
            if handler is not None:
                handler(frame)

    async def receive(self, worker_id: str, handler: FrameHandler) -> None:
        """Register with the exchange."""
        self._exchange.handlers[worker_id] = handler
        self._receiving.add(worker_id)

    async def close(self) -> None:
        """Leave the exchange."""
        for worker_id in self._receiving:
            self._exchange.handlers.pop(worker_id, None)
        self._receiving.clear()
