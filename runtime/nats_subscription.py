"""A handler on the NATS bus that follows it from connection to connection."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from nats.aio.msg import Msg

from runtime.bus import Handler
from runtime.bus_state import BusState
from runtime.nats_client import NatsConnection

if TYPE_CHECKING:
    from nats.aio.subscription import Subscription as ClientSubscription

PENDING_MESSAGES_LIMIT = 256 * 1024
PENDING_BYTES_LIMIT = 64 << 20
"""What one subscription may have waiting for its handler before newer messages are dropped; as
much as the server keeps for a slow client, so that neither is the one that always loses."""


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
        self._inner: ClientSubscription | None = None

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
            if self._inner is not None and self._connection is connection:
                await self._inner.unsubscribe()
            self._inner = None
        elif self._connection is not connection:
            self._connection = connection
            self._inner = await connection.client.subscribe(
                self._subject,
                cb=self._receive,
                pending_msgs_limit=PENDING_MESSAGES_LIMIT,
                pending_bytes_limit=PENDING_BYTES_LIMIT,
            )

    async def _receive(self, message: Msg) -> None:
        if not self._closed:
            self._state.call(self._handler, message.subject, message.data)
