"""The sending end of shared memory: a segment of its own, and a line to each receiver that has proved to read it."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable

from kvtransfer import packets
from kvtransfer.link import Frame
from kvtransfer.meeting import Meeting
from kvtransfer.packet_line import PacketLine
from kvtransfer.segment import Place, Segment
from protocol.messages import Peer
from runtime.logs import get_logger

MAX_SHARE = 0.5
"""One receiver holds this part of the segment at the most, so that one that has stopped leaves room for others."""

NOT_SHARED, UNPROVEN, FULL = "not_shared", "unproven", "full"
"""Why a frame can't go by shared memory: the receiver isn't where this worker looks; it hasn't proved yet that it
reads this segment; there is no room."""
REASONS = (NOT_SHARED, UNPROVEN, FULL)

log = get_logger("shm")


class _Line:
    """One receiver: what it was told of and may still read, oldest first."""

    def __init__(self, segment: Segment, to: Peer, connection: socket.socket, on_end: Callable[[], None]) -> None:
        self.proven = False
        self.held_bytes = 0
        self._segment = segment
        self._to = to
        self._untold: deque[Place] = deque()
        self._told: deque[Place] = deque()
        self._num_done = 0
        self._on_end = on_end
        self._line = PacketLine(connection, self._packet, self._ended)

    def add(self, place: Place) -> None:
        """A frame is there, to be told of with the next ``tell``."""
        self._untold.append(place)
        self.held_bytes += place.span

    def tell(self) -> None:
        """Tell of all places that weren't told of; as far as the line takes it, the rest when it takes more."""
        while self._untold:
            some = [self._untold[i] for i in range(min(len(self._untold), packets.MAX_PLACES))]
            if not self._line.send(packets.told(some), self.tell):
                return
            for _ in some:
                self._told.append(self._untold.popleft())

    def close(self) -> None:
        """The receiver gets nothing more; its places are free."""
        self._line.close()
        for place in (*self._told, *self._untold):
            self._segment.free(place)
        self._told.clear()
        self._untold.clear()
        self.held_bytes = 0

    def _packet(self, packet: bytes) -> None:
        kind = packets.kind_of(packet)
        try:
            if kind == packets.PROOF and packet[len(kind) :] == self._segment.proof:
                self.proven = True
                log.info("memory_shared", peer=self._to.id)
            elif kind == packets.DONE and self.proven:
                self._done(packets.read_done(packet))
            else:
                raise packets.PacketError(f"{packet[:16]!r} is no answer")
        except packets.PacketError as error:
            log.warning("memory_line_refused", peer=self._to.id, reason=str(error))
            self._ended()

    def _done(self, count: int) -> None:
        """Places are done with in the order in which they were told."""
        if not self._num_done <= count <= self._num_done + len(self._told):
            raise packets.PacketError(f"{count} places are done, {self._num_done + len(self._told)} were told")
        for _ in range(count - self._num_done):
            place = self._told.popleft()
            self.held_bytes -= place.span
            self._segment.free(place)
        self._num_done = count

    def _ended(self) -> None:
        self.close()
        self._on_end()


class ShmSender:
    """Frames of one worker to all receivers on its host."""

    def __init__(self, meeting: Meeting, me: Peer, segment_bytes: int) -> None:
        """Raises ``OSError`` if there is no memory to share."""
        self._meeting = meeting
        self._me = me
        self._segment = Segment(segment_bytes)
        self._lines: dict[Peer, _Line] = {}

    @property
    def sharing(self) -> list[str]:
        """Receivers that read this worker's segment."""
        return [peer.id for peer, line in self._lines.items() if line.proven]

    def offer(self, to: Peer) -> None:
        """Ask a receiver to prove that it reads this memory, unless it has been asked. Never waits."""
        if to in self._lines:
            return
        connection = None
        try:
            connection = self._meeting.connect(to)
            if connection is None:
                return
            socket.send_fds(connection, [packets.hello(self._me)], [self._segment.fd])
        except OSError as error:
            log.every(60.0, to.id).warning("memory_line_failed", peer=to.id, reason=str(error))
            if connection is not None:
                connection.close()
            return
        self._lines[to] = _Line(self._segment, to, connection, lambda: self._forget(to))

    def send(self, to: Peer, frame: Frame, num_bytes: int) -> str:
        """Lay a frame down for a receiver: "" if that was done, else why not."""
        line = self._lines.get(to)
        if line is None:
            return NOT_SHARED
        if not line.proven:
            return UNPROVEN
        if line.held_bytes + num_bytes > self._segment.num_bytes * MAX_SHARE:
            return FULL
        try:
            place = self._segment.put(frame, num_bytes)
        except OSError as error:
            log.every(60.0, "memory").warning("segment_not_written", reason=str(error))
            return FULL
        if place is None:
            return FULL
        line.add(place)
        return ""

    def tell(self, to: Peer) -> None:
        """Tell a receiver of what was sent."""
        line = self._lines.get(to)
        if line is not None:
            line.tell()

    def lost(self, peer: Peer) -> None:
        """A life is over, or silent for too long: it may wake up, but what it reads then has no number any more."""
        line = self._lines.pop(peer, None)
        if line is not None:
            line.close()

    def close(self) -> None:
        """End all lines. Idempotent."""
        for peer in list(self._lines):
            self.lost(peer)
        self._segment.close()

    def _forget(self, peer: Peer) -> None:
        self._lines.pop(peer, None)
