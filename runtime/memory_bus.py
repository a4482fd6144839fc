"""The bus's in-process twin: a hub per test or process, with hooks to inject faults."""

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.bus import (
    CLOSE_LINGER_S,
    DEFAULT_MAX_PENDING_BYTES,
    MESSAGE_OVERHEAD_BYTES,
    BusCounters,
    Handler,
    StateCallback,
    check_message,
    check_subject,
    subject_matches,
)
from runtime.bus_state import BusState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MAX_BATCH = 256
"""Messages handed over in one turn of the loop, so that a flood leaves others their turn."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A published message that hasn't reached the hub; `number` orders it against subscriptions."""

    number: int
    subject: str
    payload: bytes


class MemoryHub:
    """The broker of one group of memory buses. All of them live on one event loop.

    Fault hooks, for tests:

    - `filter(subject, payload)` says what becomes of a message at the hub: return `()` to lose it,
      `(payload, payload)` to double it, other bytes to damage it.
    - `delay(subject, payload)` says how many seconds later a copy is delivered; later messages
      overtake it. Zero keeps the order.
    - `cut(bus)` and `restore(bus)` take a bus off the hub and put it back; `inject` delivers a
      message that no bus has sent (say, one that a filter kept back).
    """

    def __init__(self) -> None:
        self.filter: Callable[[str, bytes], Iterable[bytes]] | None = None
        self.delay: Callable[[str, bytes], float] | None = None
        self._buses: list[MemoryBus] = []
        self._clock = 0

    def cut(self, bus: "MemoryBus") -> None:
        """Take `bus` off the hub: what it sends waits, what is sent to it is lost."""
        bus._set_connected(False)

    def restore(self, bus: "MemoryBus") -> None:
        """Put `bus` back: it sends what waits."""
        bus._set_connected(True)

    def inject(self, subject: str, payload: bytes) -> None:
        """Deliver a message at once, past the hooks."""
        self._deliver(self.tick(), subject, payload)

    def tick(self) -> int:
        """Return the next number; messages and subscriptions draw from one sequence."""
        self._clock += 1
        return self._clock

    def attach(self, bus: "MemoryBus") -> None:
        """Make `bus` known; a bus does this itself."""
        self._buses.append(bus)

    def detach(self, bus: "MemoryBus") -> None:
        """Forget `bus`; a bus does this itself when closed."""
        if bus in self._buses:
            self._buses.remove(bus)

    def route(self, message: _Waiting) -> None:
        """Pass one message through the hooks and on to the subscriptions."""
        subject = message.subject
        copies = (message.payload,) if self.filter is None else self.filter(subject, message.payload)
        for payload in copies:
            seconds = 0.0 if self.delay is None else self.delay(subject, payload)
            if seconds > 0:
                asyncio.get_running_loop().call_later(seconds, self._deliver, message.number, subject, payload)
            else:
                self._deliver(message.number, subject, payload)

    def _deliver(self, number: int, subject: str, payload: bytes) -> None:
        for bus in tuple(self._buses):
            bus._receive(number, subject, payload)


class MemorySubscription:
    """A handler on one memory bus."""

    def __init__(self, bus: "MemoryBus", number: int, subject: str, handler: Handler) -> None:
        self.number = number
        self.handler = handler
        self._bus = bus
        self._subject = subject

    @property
    def subject(self) -> str:
        """The pattern subscribed to."""
        return self._subject

    def close(self) -> None:
        """End it at once; idempotent."""
        self._bus._forget(self)


class MemoryBus:
    """A `runtime.bus.Bus` whose server is a `MemoryHub` in the same event loop."""

    def __init__(
        self,
        hub: MemoryHub,
        max_payload: int = 1 << 20,
        *,
        max_pending: int = DEFAULT_MAX_PENDING_BYTES,
    ) -> None:
        self._hub = hub
        self._max_payload = max_payload
        self._max_pending = max_pending
        self._state = BusState()
        self._closed = False
        self._outbox: deque[_Waiting] = deque()
        self._outbox_bytes = 0
        self._flush_planned = False
        self._outbox_empty = asyncio.Event()
        self._outbox_empty.set()
        self._subscriptions: list[MemorySubscription] = []
        self._state.set_connected(True)
        hub.attach(self)

    @property
    def max_payload(self) -> int:
        """Bytes taken in one message."""
        return self._max_payload

    @property
    def connected(self) -> bool:
        """False while the hub has cut this bus off, and after `close`."""
        return self._state.connected

    @property
    def counters(self) -> BusCounters:
        """Running totals."""
        return self._state.counters

    def publish(self, subject: str, payload: bytes) -> None:
        """Queue one message; it is delivered in a later turn of the loop."""
        check_message(subject, payload, self._max_payload)
        size = len(payload) + MESSAGE_OVERHEAD_BYTES
        if self._closed or self._outbox_bytes + size > self._max_pending:
            self._state.note_dropped(subject, len(payload), "closed" if self._closed else "full")
            return
        self._outbox.append(_Waiting(self._hub.tick(), subject, payload))
        self._outbox_bytes += size
        self._outbox_empty.clear()
        self._plan_flush()

    async def drain(self) -> None:
        """Return when the hub has all that was published before, or it was dropped."""
        await self._outbox_empty.wait()

    def subscribe(self, subject: str, handler: Handler) -> MemorySubscription:
        """Hear each message that is published from now on."""
        check_subject(subject, wildcards=True)
        subscription = MemorySubscription(self, self._hub.tick(), subject, handler)
        self._subscriptions.append(subscription)
        return subscription

    async def ready(self) -> None:
        """Return when the bus is on the hub."""
        await self._state.wait_connected()

    def on_state(self, callback: StateCallback) -> None:
        """Hear of `cut` and `restore`."""
        self._state.on_change(callback)

    async def close(self) -> None:
        """Deliver what waits if the hub is there, then end."""
        if self.connected:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_LINGER_S):
                    await self.drain()
        self._closed = True
        self._state.end()
        self._outbox_empty.set()
        self._outbox.clear()
        self._outbox_bytes = 0
        self._subscriptions.clear()
        self._hub.detach(self)

    def _set_connected(self, connected: bool) -> None:
        if self._closed:
            return
        self._state.set_connected(connected)
        self._plan_flush()

    def _plan_flush(self) -> None:
        if self._outbox and self.connected and not self._flush_planned:
            self._flush_planned = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_planned = False
        for _ in range(min(len(self._outbox), MAX_BATCH)):
            if not self.connected:
                return
            message = self._outbox.popleft()
            self._outbox_bytes -= len(message.payload) + MESSAGE_OVERHEAD_BYTES
            self._state.note_published(len(message.payload))
            self._hub.route(message)
        if self._outbox:
            self._plan_flush()
        else:
            self._outbox_empty.set()

    def _receive(self, number: int, subject: str, payload: bytes) -> None:
        if not self.connected:
            return
        for each in tuple(self._subscriptions):
            if each.number > number or not subject_matches(each.subject, subject):
                continue
            if each not in self._subscriptions:  # closed by a handler before it in this loop
                continue
            self._state.call(each.handler, subject, payload)

    def _forget(self, subscription: MemorySubscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
