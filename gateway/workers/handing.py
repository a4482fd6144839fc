"""Connections that one process accepts and another one serves: they go over a pair of sockets as descriptors."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from runtime.logs import get_logger
from runtime.tasks import spawn

AT_A_TIME = 64
"""Taken in one go, so that a flood of newcomers doesn't hold up answers."""

_CONNECTION = b"c"
LOG_S = 10.0

log = get_logger("gateway.handing")


def hand_over(channel: socket.socket, connection: socket.socket) -> bool:
    """Give it away and close our own end of it; False if the other process has no room for it now, or is gone."""
    try:
        socket.send_fds(channel, [_CONNECTION], [connection.fileno()])
    except OSError:
        return False  # full, too much on its way, or gone: it is offered to somebody else
    connection.close()
    return True


class Arrivals:
    """The end that takes connections and serves them."""

    def __init__(self, channel: socket.socket, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        """Begins to take at once. ``make_protocol`` is called for each connection."""
        self._loop = asyncio.get_running_loop()
        self._channel = channel
        self._make_protocol = make_protocol
        self.num_taken = 0
        self.over = asyncio.Event()
        """Nothing comes any more, and all that came is being served."""
        self._channel.setblocking(False)
        self._loop.add_reader(self._channel, self._take)

    def close(self) -> None:
        """Take no more. Idempotent."""
        self._loop.remove_reader(self._channel)

    def _take(self) -> None:
        for _ in range(AT_A_TIME):
            try:
                data, descriptors, _, _ = socket.recv_fds(self._channel, len(_CONNECTION), 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            if not data:
                self.close()
                self.over.set()
                return
            self.num_taken += 1
            if not descriptors:  # the system drops what this process has no number left for
                log.every(LOG_S, "dropped").error("connection_dropped", reason="too many open files")
            for each in descriptors:
                spawn(self._serve(socket.socket(fileno=each)), "connection")

    async def _serve(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError as error:
            log.debug("connection_gone", reason=str(error))
            connection.close()
