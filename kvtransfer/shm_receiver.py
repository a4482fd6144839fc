"""The receiving end of shared memory: copies frames out of senders' segments, and hands on the copies alone."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

from kvtransfer import packets
from kvtransfer.link import FrameHandler
from kvtransfer.meeting import Meeting
from kvtransfer.packet_line import PacketLine
from kvtransfer.segment import NUMBER_BYTES, Place, SegmentReader
from protocol.messages import Peer
from runtime.logs import get_logger

MAX_LINES = 256
"""Senders at a time."""
HELLO_S = 10.0
"""Whoever connects and says nothing for so long is let go."""
ACCEPT_AGAIN_S = 1.0
"""After a connection could not be taken."""

log = get_logger("shm")


class _Line:
    """One sender."""

    def __init__(
        self,
        connection: socket.socket,
        reader: SegmentReader,
        take: Callable[[SegmentReader, Place], None],
        on_end: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._take = take
        self._on_end = on_end
        self._num_done = 0
        self._line = PacketLine(connection, self._packet, self._ended)

    def prove(self, proof: bytes) -> None:
        """Answer the sender's hello with the number that stands in its segment."""
        self._line.send(packets.PROOF + proof, lambda: None)

    def close(self) -> None:
        """Read nothing more."""
        self._line.close()
        self._reader.close()

    def _packet(self, packet: bytes) -> None:
        try:
            if packets.kind_of(packet) != packets.TOLD:
                raise packets.PacketError(f"{packet[:16]!r} tells of nothing")
            for place in packets.read_told(packet):
                self._take(self._reader, place)
                self._num_done += 1
        except packets.PacketError as error:
            log.warning("memory_line_refused", reason=str(error))
            self._ended()
            return
        self._say_done()

    def _say_done(self) -> None:
        """Counts are absolute: one that has to wait stands for those before it."""
        self._line.send(packets.done(self._num_done), self._say_done)

    def _ended(self) -> None:
        self.close()
        self._on_end()


class ShmReceiver:
    """Frames from all senders of the host for one worker."""

    def __init__(self, meeting: Meeting, me: Peer, handler: FrameHandler, max_frame_bytes: int) -> None:
        """Listen. Needs a running loop. Raises ``OSError``."""
        self.received_bytes = 0
        self._meeting = meeting
        self._me = me
        self._handler = handler
        self._scratch = memoryview(bytearray(NUMBER_BYTES + max_frame_bytes))
        self._lines: dict[_Line, str] = {}
        self._greeting: dict[socket.socket, asyncio.TimerHandle] = {}
        self._loop = asyncio.get_running_loop()
        self._listener = meeting.listen(me)
        self._listen()

    @property
    def sharing(self) -> list[str]:
        """Senders whose segment this worker reads."""
        return sorted(set(self._lines.values()))

    def lost(self, peer: Peer) -> None:
        """Its line ends by itself: the kernel says so."""

    def close(self) -> None:
        """Hear nothing more. Idempotent."""
        if self._listener.fileno() < 0:
            return
        self._meeting.leave(self._me)
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for connection in list(self._greeting):
            self._let_go(connection)
        for line in list(self._lines):
            line.close()
        self._lines.clear()

    def _listen(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # it has gone again
        except OSError as error:  # no descriptor left, say: who waits can wait on
            log.warning("memory_line_refused", reason=str(error))
            self._loop.remove_reader(self._listener)
            self._loop.call_later(ACCEPT_AGAIN_S, self._listen)
            return
        connection.setblocking(False)
        if len(self._lines) + len(self._greeting) >= MAX_LINES:
            connection.close()
            return
        self._greeting[connection] = self._loop.call_later(HELLO_S, self._let_go, connection)
        self._loop.add_reader(connection, self._greet, connection)

    def _let_go(self, connection: socket.socket) -> None:
        self._stop_greeting(connection)
        connection.close()

    def _stop_greeting(self, connection: socket.socket) -> None:
        self._greeting.pop(connection).cancel()
        self._loop.remove_reader(connection)

    def _greet(self, connection: socket.socket) -> None:
        """The first packet brings the sender's segment."""
        try:
            packet, fds, _, _ = socket.recv_fds(connection, packets.MAX_PACKET_BYTES, 1)
        except BlockingIOError:
            return
        except OSError:
            packet, fds = b"", []
        self._stop_greeting(connection)
        try:
            if packets.kind_of(packet) != packets.HELLO or not fds:
                raise packets.PacketError("no hello")
            sender, reader = packets.read_hello(packet), SegmentReader(fds[0])
            proof = reader.proof()
        except (packets.PacketError, OSError) as error:
            if packet:  # else it only tried whether anybody is here
                log.every(1.0, "hello").warning("memory_line_refused", reason=str(error))
            for fd in fds:
                os.close(fd)
            connection.close()
            return
        self._open(connection, sender, reader, proof)

    def _open(self, connection: socket.socket, sender: Peer, reader: SegmentReader, proof: bytes) -> None:
        def ended() -> None:
            self._lines.pop(line, None)

        line = _Line(connection, reader, self._take, ended)
        line.prove(proof)
        self._lines[line] = sender.id
        log.info("memory_shared", peer=sender.id)

    def _take(self, reader: SegmentReader, place: Place) -> None:
        """Copy a frame out of a segment and hand on the copy, which alone is looked at. One that changes is dropped."""
        into = self._scratch[: NUMBER_BYTES + place.num_bytes]
        if len(into) != NUMBER_BYTES + place.num_bytes or not reader.read(place, into):
            log.every(1.0, "stale").warning("place_overtaken", num_bytes=place.num_bytes)
            return
        self.received_bytes += place.num_bytes
        try:
            self._handler(into[NUMBER_BYTES:])
        except Exception:
            log.exception("frame_handler_failed")
