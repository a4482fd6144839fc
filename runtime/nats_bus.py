"""The bus over a NATS server: queues while the server is away, comes back by itself for ever."""

import asyncio
import contextlib
import time
from collections.abc import Callable

from runtime.bus import (
    CLOSE_LINGER_S,
    DEFAULT_MAX_PENDING_BYTES,
    BusCounters,
    Handler,
    StateCallback,
    check_message,
    check_subject,
)
from runtime.bus_address import BusAddress
from runtime.bus_state import BusState
from runtime.logs import get_logger
from runtime.nats_client import NatsConnection
from runtime.nats_outbox import NatsOutbox
from runtime.nats_subscription import NatsSubscription
from runtime.tls import NO_TLS_FILES, TlsFiles

log = get_logger("bus")

RETRY_MIN_S = 0.05
RETRY_MAX_S = 1.0
"""Pauses between tries to connect double from the one to the other."""

SAY_AGAIN_S = 10.0
"""Seconds after which a service that still waits for the bus says so again."""

MAX_REASONS = 8
"""Different reasons that are said in this time; a server that is coming up shows two or three."""


class NatsBus:
    """A `runtime.bus.Bus` on a NATS server; made by `connect_bus`."""

    def __init__(self, address: BusAddress, name: str, max_pending: int) -> None:
        self._address = address
        self._name = name
        self._max_payload = 0
        self._state = BusState()
        self._outbox = NatsOutbox(self._state, max_pending)
        self._subscriptions: dict[NatsSubscription, None] = {}
        self._closed = False
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def max_payload(self) -> int:
        """Bytes that the server of the latest connection takes in one message."""
        return self._max_payload

    @property
    def connected(self) -> bool:
        """Whether there is a server just now."""
        return self._state.connected

    @property
    def counters(self) -> BusCounters:
        """Running totals."""
        return self._state.counters

    def publish(self, subject: str, payload: bytes) -> None:
        """Queue one message; never blocks."""
        check_message(subject, payload, self._max_payload)
        if self._closed:
            self._state.note_dropped(subject, len(payload), "closed")
        else:
            self._outbox.put_message(subject, payload)

    async def drain(self) -> None:
        """Return when the server has read all that was published before, or it was dropped.

        Without a server this waits for the next one.
        """
        if not self._closed:
            await self._outbox.passed()

    def subscribe(self, subject: str, handler: Handler) -> NatsSubscription:
        """Subscribe, in order with what is published before and after."""
        check_subject(subject, wildcards=True)
        subscription = NatsSubscription(subject, handler, self._state, self._forget)
        self._subscriptions[subscription] = None
        self._outbox.put_subscription(subscription)
        return subscription

    async def ready(self) -> None:
        """Return when a server knows all subscriptions so far."""
        while not self._closed and not await self._outbox.passed():
            await self._state.wait_connected()

    def on_state(self, callback: StateCallback) -> None:
        """Hear of the line being lost and found."""
        self._state.on_change(callback)

    async def close(self) -> None:
        """Hand over what waits if there is a server, then end the connection."""
        if self._closed:
            return
        self._closed = True
        try:
            if self.connected:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CLOSE_LINGER_S):
                        await self._outbox.passed()
        finally:
            if self._supervisor is not None:
                self._supervisor.cancel()
                await asyncio.wait([self._supervisor])
            self._state.end()
            self._outbox.end()
            self._subscriptions.clear()

    async def start(self, on_wait: Callable[[str], None]) -> None:
        """Wait for a server, and stay with it from then on; `connect_bus` calls this once."""
        connection = await self._open(on_wait)
        self._supervisor = asyncio.create_task(self._stay(connection), name=f"bus {self._name}")
        try:
            await self._state.wait_connected()
        except asyncio.CancelledError:
            await self.close()
            raise

    async def _open(self, on_wait: Callable[[str], None]) -> NatsConnection:
        pause, said = RETRY_MIN_S, dict[str, float]()
        while True:
            connection = NatsConnection(self._state.counters)
            try:
                await connection.open(self._address, self._name)
            except ConnectionError as error:
                now = time.monotonic()
                said = {why: at for why, at in said.items() if now - at < SAY_AGAIN_S}
                if str(error) not in said and len(said) < MAX_REASONS:
                    said[str(error)] = now
                    on_wait(f"waiting for the bus at {self._address}: {error}")
            else:
                return connection
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_MAX_S)

    async def _stay(self, connection: NatsConnection) -> None:
        """Serve one connection after the other, until cancelled."""
        while True:
            await self._serve(connection)
            log.warning("bus_lost", server=self._address)
            connection = await self._open(lambda why: log.warning("bus_waiting", why=why))
            log.info("bus_back", server=self._address)

    async def _serve(self, connection: NatsConnection) -> None:
        """Send and receive over `connection` until it is lost; leaves it closed."""
        self._max_payload = connection.client.max_payload
        settling: set[asyncio.Task[None]] = set()
        pump = asyncio.create_task(self._outbox.pump(connection, self._subscriptions, settling))
        lost = asyncio.create_task(connection.wait_lost())
        try:
            await asyncio.wait([pump, lost], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._state.set_connected(False)
            await connection.close()  # before the tasks end: see NatsConnection.settle
            await _end([pump, lost, *settling])

    def _forget(self, subscription: NatsSubscription) -> None:
        self._subscriptions.pop(subscription, None)
        if not self._closed:
            self._outbox.put_subscription(subscription)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            log.warning("bus_line_failed", error=str(result) or type(result).__name__)


async def connect_bus(
    url: str,
    *,
    name: str,
    tls: TlsFiles = NO_TLS_FILES,
    max_pending: int = DEFAULT_MAX_PENDING_BYTES,
    on_wait: Callable[[str], None],
) -> NatsBus:
    """Wait for a NATS server, for as long as it takes, and return a bus on it.

    `url` may carry credentials: `nats://user:password@host:port`. With `tls://`, or with any file
    in `tls`, the server must prove its name and nothing is ever sent in the clear. `name` is what
    the server's monitoring shows. `on_wait` is told in one line (without credentials) what is
    waited for: each reason at once, and again after ten seconds.

    Raises:
        ValueError: `url` is no address.

    """
    bus = NatsBus(BusAddress.parse(url, tls), name, max_pending)
    await bus.start(on_wait)
    return bus
