"""One connection between two workers of a host: packets in order, none lost, and the news of its end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from kvtransfer.packets import MAX_PACKET_BYTES


class PacketLine:
    """Reads one packet in a turn of the loop. ``on_end`` is called once, when the other side is gone."""

    def __init__(
        self, connection: socket.socket, on_packet: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> None:
        """Takes over a connected non-blocking socket of packets. Needs a running loop."""
        self._socket = connection
        self._on_packet = on_packet
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection, self._read)
        self._on_room: Callable[[], None] | None = None

    def send(self, packet: bytes, on_room: Callable[[], None]) -> bool:
        """Whether the packet went; if not, ``on_room`` is called once when it is worth another try."""
        if self._on_room is not None:
            return False
        try:
            self._socket.send(packet)
        except BlockingIOError:
            self._on_room = on_room
            self._loop.add_writer(self._socket, self._room)
            return False
        except OSError:
            return False  # it has ended, which the reader hears
        return True

    def close(self) -> None:
        """End it; nothing is called any more. Idempotent."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()

    def _room(self) -> None:
        self._loop.remove_writer(self._socket)
        on_room, self._on_room = self._on_room, None
        if on_room is not None:
            on_room()

    def _read(self) -> None:
        try:
            packet = self._socket.recv(MAX_PACKET_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            packet = b""
        if packet:
            self._on_packet(packet)
            return
        self.close()
        self._on_end()
