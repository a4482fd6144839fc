"""One connection to a NATS server, opened with care and never reopened by itself.

nats-py's own reconnecting gives up for good on some server errors, and keeps waiters of the old
connection hanging; so it is switched off here, and `runtime.nats_bus` opens a new connection.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from runtime.bus import BusCounters
from runtime.bus_address import BusAddress
from runtime.logs import get_logger
from runtime.tls import tls_reason

log = get_logger("bus")

CONNECT_TIMEOUT_S = 2
"""Seconds for each step of opening a connection; a broker in reach answers in milliseconds."""

PING_INTERVAL_S = 5
"""Seconds between pings; with `MAX_OUTSTANDING_PINGS` a dead line is noticed within 15 s."""

MAX_OUTSTANDING_PINGS = 2

LOOK_AGAIN_S = 1.0
"""Seconds between looks at whether the connection still stands, should nobody have told us."""

WRITE_BUFFER_BYTES = 1 << 20
"""Bytes that nats-py gathers before it makes the sender wait for the socket."""


class _Client(Client):
    """A nats-py client that logs in over an encrypted line only, where one is asked for, and hears at once.

    nats-py itself leaves the former to the server, whose first words come in the clear: whoever sits between
    could take TLS out of them and read the password.
    """

    must_encrypt = False

    def __init__(self) -> None:
        super().__init__()
        self.hearers: dict[int, Callable[[str, bytes], None]] = {}
        """By subscription. nats-py would put each message into a queue and wake a task for it; what doesn't wait
        needs neither, and a process with few messages at a time pays for both each time."""

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        hear = self.hearers.get(sid)
        if hear is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            hear(subject.decode(), data)

    def _connect_command(self) -> bytes:
        transport: Any = self._transport
        if self.must_encrypt and transport._io_writer.get_extra_info("ssl_object") is None:
            raise nats.errors.Error("it offers no TLS, and nothing is sent to it without")
        return super()._connect_command()


class NatsConnection:
    """A nats-py client and the moment at which it was lost."""

    def __init__(self, counters: BusCounters) -> None:
        self.client = _Client()
        self._counters = counters
        self._ended = asyncio.Event()
        self._opening_error: Exception | None = None
        self._is_open = False

    async def open(self, address: BusAddress, name: str) -> None:
        """Connect and authenticate, with one try.

        Raises:
            ConnectionError: there was no server, it refused us, or it took too long. Its message
                is the reason, in a few words, without credentials.

        """
        context = address.tls.context() if address.encrypted else None
        self.client.must_encrypt = address.encrypted
        try:
            await self.client.connect(
                servers=list(address.servers),
                name=name,
                user=address.user,
                password=address.password,
                token=address.token,
                tls=context,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=CONNECT_TIMEOUT_S,
                ping_interval=PING_INTERVAL_S,
                max_outstanding_pings=MAX_OUTSTANDING_PINGS,
                pending_size=WRITE_BUFFER_BYTES,
                skip_subject_validation=True,  # ours is stricter, and remembers
                error_cb=self._on_error,
                closed_cb=self._on_closed,
            )
        except (OSError, TimeoutError, nats.errors.Error) as error:
            await self.close()
            raise ConnectionError(_reason(self._opening_error or error, address)) from error
        except asyncio.CancelledError:
            await self.close()
            raise
        self._is_open = True

    async def subscribe(self, subject: str, hear: Callable[[str, bytes], None]) -> Callable[[], Awaitable[None]]:
        """Have ``hear`` called with subject and payload of each message; returns what ends that.

        ``hear`` is called where the line is read: it raises nothing.
        """

        async def early(message: Msg) -> None:  # the subscription's number isn't known yet
            hear(message.subject, message.data)

        inner = await self.client.subscribe(subject, cb=early)
        number: int = inner._id
        self.client.hearers[number] = hear

        async def end() -> None:
            self.client.hearers.pop(number, None)
            await inner.unsubscribe()

        return end

    async def wait_lost(self) -> None:
        """Return when the connection has ended, by whichever side."""
        while self.client.is_connected:
            # The callback may come late: on a dead line nats-py first tries to send the rest.
            try:
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self._ended.wait()
            except TimeoutError:
                continue

    async def settle(self) -> None:
        """Return when the server has read all that was published or subscribed before.

        Two round trips if need be: nats-py writes a PING ahead of what it is still gathering.
        Must not be cancelled while the connection lives: nats-py's reader breaks on a PONG whose
        waiter has gone. For the same reason there is no time limit here; pings set one.
        """
        forever = 1 << 20
        if self.client.pending_data_size:
            await self.client.flush(forever)
        await self.client.flush(forever)

    async def close(self) -> None:
        """End the connection; idempotent, bounded in time."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self.client.close()
        except (OSError, TimeoutError, nats.errors.Error) as error:
            log.debug("bus_close_failed", error=error)
        await self._let_go()

    async def _let_go(self) -> None:
        """Give up a dead line: nats-py has no public way, and would wait for it to take bytes."""
        client: Any = self.client
        names = ("_reading_task", "_ping_interval_task", "_flusher_task")
        tasks = [task for name in names if (task := getattr(client, name, None)) is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        writer: asyncio.StreamWriter | None = getattr(client._transport, "_io_writer", None)
        if writer is not None:
            abort(writer.transport)

    async def _on_error(self, error: Exception) -> None:
        if not self._is_open:
            self._opening_error = error
        elif isinstance(error, nats.errors.SlowConsumerError):
            self._counters.slow_consumer_events += 1
            log.every(1.0, "slow").warning("bus_slow_consumer", subject=error.subject)
        else:
            log.every(1.0, type(error).__name__).warning("bus_error", error=str(error) or type(error).__name__)

    async def _on_closed(self) -> None:
        self._ended.set()


def _reason(error: Exception, address: BusAddress) -> str:
    """Why there is no connection, in a few words, without credentials."""
    if isinstance(error, ssl.SSLError):
        return tls_reason(error)
    text = str(error) or type(error).__name__
    if "authorization" in text.lower():
        given = "this user and password" if address.user or address.token else "whoever names no user and password"
        return f"authorization violation: it refuses {given}"
    return text


def abort(transport: asyncio.WriteTransport) -> None:
    """Drop a line at once. TLS transports of Python 3.11.2 forget their protocol when closed twice, and fail here."""
    if getattr(transport, "_ssl_protocol", transport) is not None:
        transport.abort()
