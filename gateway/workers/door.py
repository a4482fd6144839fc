"""The port: accepts connections and hands each to the worker with the fewest."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping

from gateway.workers.member import Member
from runtime.logs import get_logger

AT_A_TIME = 64
AGAIN_S = 0.02
"""When nobody can take a connection, the next try; newcomers wait in the port's backlog meanwhile."""

NO_DESCRIPTOR_S = 1.0
LOG_S = 10.0

log = get_logger("gateway.door")


class Door:
    """Closed at first."""

    def __init__(self, listener: socket.socket, members: Mapping[int, Member]) -> None:
        """``members`` may change at any time."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._members = members
        self._last = 0
        self._waiting: socket.socket | None = None  # accepted, and nobody's yet
        self._again: asyncio.TimerHandle | None = None
        listener.setblocking(False)

    def open(self) -> None:
        """Hand out connections."""
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Refuse whoever comes from now on."""
        self._loop.remove_reader(self._listener)
        if self._again is not None:
            self._again.cancel()
        if self._waiting is not None:
            self._waiting.close()
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(AT_A_TIME):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                log.every(LOG_S, "accept").error("not_accepted", reason=error.strerror)
                self._pause(NO_DESCRIPTOR_S)
                return
            if not self._hand_out(connection):
                self._waiting = connection
                self._pause(AGAIN_S)
                return

    def _hand_out(self, connection: socket.socket) -> bool:
        for member in self._order():
            if member.take(connection):
                self._last = member.number
                return True
        return False

    def _order(self) -> list[Member]:
        """Who is asked first: ready before not ready, then the fewest connections, then in turn."""

        def rank(member: Member) -> tuple[bool, bool, int, bool, int]:
            is_later = member.number > self._last
            return member.silent, not member.ready, member.num_open, not is_later, member.number

        return sorted((each for each in self._members.values() if each.serves), key=rank)

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._again = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        if self._waiting is not None and not self._hand_out(self._waiting):
            self._pause(AGAIN_S)
            return
        self._waiting = None
        self.open()
