"""A handler on the NATS bus that follows it from connection to connection."""

from collections.abc import Awaitable, Callable

from runtime.bus import Handler
from runtime.bus_state import BusState
from runtime.nats_client import NatsConnection


class NatsSubscription:
    """One handler's interest; the bus calls `follow` on each new connection and after `close`."""

    def __init__(
        self,
        subject: str,
        handler: Handler,
        state: BusState,
        on_close: Callable[["NatsSubscription"], None],
    ) -> None:
        self._subject = subject
        self._handler = handler
        self._state = state
        self._on_close = on_close
        self._closed = False
        self._connection: NatsConnection | None = None
        self._end: Callable[[], Awaitable[None]] | None = None

    @property
    def subject(self) -> str:
        """The pattern subscribed to."""
        return self._subject

    def close(self) -> None:
        """End it: the handler isn't called again, and the server is told; idempotent."""
        if not self._closed:
            self._closed = True
            self._on_close(self)

    async def follow(self, connection: NatsConnection) -> None:
        """Make the server of `connection` know that this is open, or closed; idempotent."""
        if self._closed:
            if self._end is not None and self._connection is connection:
                await self._end()
            self._end = None
        elif self._connection is not connection:
            self._connection = connection
            self._end = await connection.subscribe(self._subject, self._receive)

    def _receive(self, subject: str, payload: bytes) -> None:
        if not self._closed:
            self._state.call(self._handler, subject, payload)
