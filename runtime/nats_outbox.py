"""What waits to be sent to a NATS server: messages and subscriptions, in one order."""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

import nats.errors

from runtime.bus import MESSAGE_OVERHEAD_BYTES
from runtime.bus_state import BusState
from runtime.logs import get_logger
from runtime.nats_client import NatsConnection
from runtime.nats_subscription import NatsSubscription

log = get_logger("bus")

MAX_BATCH = 64
"""Messages handed to the client before others on the loop get their turn."""


@dataclass(frozen=True, slots=True)
class _Message:
    subject: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class _Marker:
    """Resolved with True when the server has read all before it, False if the line was lost."""

    reached: asyncio.Future[bool]


class NatsOutbox:
    """A queue bounded in bytes, which outlives the connections that empty it."""

    def __init__(self, state: BusState, max_pending: int) -> None:
        self._state = state
        self._max_pending = max_pending
        self._items: deque[_Message | _Marker | NatsSubscription] = deque()
        self._num_bytes = 0
        self._work = asyncio.Event()

    def put_message(self, subject: str, payload: bytes) -> None:
        """Queue a message, or drop and count it if it would wait beyond the limit."""
        size = len(payload) + MESSAGE_OVERHEAD_BYTES
        if self._num_bytes + size > self._max_pending:
            self._state.note_dropped(subject, len(payload), "full")
            return
        self._num_bytes += size
        self._put(_Message(subject, payload))

    def put_subscription(self, subscription: NatsSubscription) -> None:
        """Queue that the server is told of a subscription having been opened or closed."""
        self._put(subscription)

    async def passed(self) -> bool:
        """Return True when the server has read all that was queued before, False if it can't."""
        marker = _Marker(asyncio.get_running_loop().create_future())
        self._put(marker)
        return await marker.reached

    def end(self) -> None:
        """Throw away what waits, and let go whoever waits for it."""
        for item in self._items:
            if isinstance(item, _Marker):
                _resolve(item, reached=False)
        self._items.clear()
        self._num_bytes = 0

    async def pump(
        self,
        connection: NatsConnection,
        subscriptions: Iterable[NatsSubscription],
        settling: set[asyncio.Task[None]],
    ) -> NoReturn:
        """Subscribe to all, declare the bus connected, then send in order until cancelled.

        `settling` gets the tasks that watch for markers; they must outlive a cancelled pump until
        the connection is closed (see `NatsConnection.settle`).

        Raises:
            nats.errors.Error: the connection was lost.

        """
        for subscription in tuple(subscriptions):
            await subscription.follow(connection)
        self._state.set_connected(True)
        while True:
            for _ in range(min(MAX_BATCH, len(self._items))):
                item = self._items.popleft()
                if isinstance(item, _Message):
                    await self._send(connection, item)
                elif isinstance(item, NatsSubscription):
                    await item.follow(connection)
                else:
                    task = asyncio.create_task(_settle(connection, item))
                    settling.add(task)
                    task.add_done_callback(settling.discard)
            if self._items:
                await asyncio.sleep(0)
                continue
            self._work.clear()
            await self._work.wait()

    async def _send(self, connection: NatsConnection, message: _Message) -> None:
        size = len(message.payload)
        self._num_bytes -= size + MESSAGE_OVERHEAD_BYTES
        try:
            await connection.client.publish(message.subject, message.payload)
        except nats.errors.MaxPayloadError:  # queued under the larger limit of an earlier server
            self._state.note_dropped(message.subject, size, "payload limit fell")
        else:
            self._state.note_published(size)

    def _put(self, item: _Message | _Marker | NatsSubscription) -> None:
        self._items.append(item)
        self._work.set()


async def _settle(connection: NatsConnection, marker: _Marker) -> None:
    """Resolve `marker` when all before it is at the server, or the line is gone."""
    reached = False
    try:
        await connection.settle()
        reached = True
    except nats.errors.Error as error:
        log.debug("bus_settle_failed", error=error)
    finally:
        _resolve(marker, reached=reached)


def _resolve(marker: _Marker, *, reached: bool) -> None:
    if not marker.reached.done():  # done already: whoever waited was cancelled
        marker.reached.set_result(reached)
