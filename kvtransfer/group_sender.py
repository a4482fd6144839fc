"""The sending end of process groups: one for each receiver, made when frames for it will come."""

from __future__ import annotations

import asyncio
import queue
import secrets

from kvtransfer.group_line import GroupEnd, GroupLine
from kvtransfer.link import Frame
from kvtransfer.pair_group import SENDER, MakeGroup, PairGroup
from protocol.link_messages import GroupEnded, GroupOffer, GroupTold
from protocol.messages import Peer
from runtime.logs import get_logger
from runtime.postbox import Postbox

NOT_JOINED, GROUP_FULL = REASONS = ("not_joined", "group_full")
"""Why a frame doesn't go through a group: there is none (yet), or its receiver is too slow."""

MAX_BUFFERS = 32
"""Frames for one receiver that wait for the thread: some pieces of several transfers. Buffers are made as they are
needed, and used again."""
REJOIN_S = 10.0
"""After a group that failed no other is tried with the same receiver for so long."""
REFUSED_S = 60.0
"""After a receiver that refused: its reasons last."""
MAX_REASON_CHARS = 200

log = get_logger("group")


class _Line:
    """One receiver."""

    def __init__(self, line: GroupLine, postbox: Postbox, max_frame_bytes: int) -> None:
        self.line = line
        self._postbox = postbox
        self._max_frame_bytes = max_frame_bytes
        self._untold: list[tuple[bytearray, int]] = []
        self._waiting: queue.SimpleQueue[tuple[bytearray, int] | None] = queue.SimpleQueue()
        self._free: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
        self._freed = asyncio.Event()
        self._num_awaiting = 0
        self._num_buffers = 0
        self._num_told = 0

    def add(self, frame: Frame, num_bytes: int) -> bool:
        """Whether there was room for a frame. It goes with the next ``tell``."""
        buffer = self._buffer()
        if buffer is None:
            return False
        whole, start = memoryview(buffer), 0
        for part in frame:
            if len(part):  # an empty view can't be cast
                flat = memoryview(part).cast("B")
                whole[start : start + len(flat)] = flat
                start += len(flat)
        self._untold.append((buffer, num_bytes))
        return True

    def tell(self) -> None:
        """Tell of the frames that were added, and let them go."""
        if not self._untold or not self.line.is_open:
            return
        told = GroupTold(self.line.group, self._num_told, tuple(size for _, size in self._untold))
        self._postbox.send(self.line.peer, told)
        self._num_told += len(self._untold)
        for frame in self._untold:
            self._waiting.put(frame)
        self._untold.clear()

    async def room(self) -> None:
        """Return when half of the buffers are free, or the group is over."""
        self._num_awaiting += 1  # before the look: the thread frees first and then looks at this
        try:
            while not self.line.is_closed and self._num_buffers - self._free.qsize() > MAX_BUFFERS // 2:
                self._freed.clear()
                await self._freed.wait()
        finally:
            self._num_awaiting -= 1

    def work(self, group: PairGroup) -> None:
        """In the thread: send what was told."""
        while (frame := self._waiting.get()) is not None and not self.line.is_closed:
            group.send(*frame)
            self._free.put(frame[0])
            if self._num_awaiting:
                self.line.on_loop(self._freed.set)

    def close(self) -> None:
        """What isn't sent yet is lost."""
        self.line.close()
        self._untold.clear()
        self._waiting.put(None)
        self._freed.set()

    def _buffer(self) -> bytearray | None:
        try:
            return self._free.get_nowait()
        except queue.Empty:
            if self._num_buffers == MAX_BUFFERS:
                return None
        self._num_buffers += 1
        return bytearray(self._max_frame_bytes)


class GroupSender(GroupEnd[_Line]):
    """Frames of one worker to all receivers."""

    def __init__(self, postbox: Postbox, backend: str, device: str, make: MakeGroup, max_frame_bytes: int) -> None:
        """``make`` makes a group of ``backend`` on ``device``. Needs a running loop."""
        super().__init__(postbox)
        self._max_frame_bytes = max_frame_bytes
        self._backend = backend
        self._device = device
        self._make = make
        self._not_before: dict[Peer, float] = {}
        self._loop = asyncio.get_running_loop()

    def offer(self, to: Peer) -> None:
        """Ask a receiver to join a group, unless it has been asked."""
        if to in self.lines or self._loop.time() < self._not_before.get(to, 0.0) or self.no_room(to):
            return
        group = secrets.token_hex(8)
        line = GroupLine(self.postbox, to, group, lambda reason: self.failed(to, reason))
        self.lines[to] = end = _Line(line, self.postbox, self._max_frame_bytes)
        self.postbox.send(to, GroupOffer(group, self._backend, self._device))
        try:
            line.start(self._make, SENDER, end.work)
        except OSError as error:
            self.failed(to, str(error))

    def send(self, to: Peer, frame: Frame, num_bytes: int) -> str:
        """Keep a copy of a frame, to be sent: "" if that was done, else why not."""
        line = self.lines.get(to)
        if line is None or not line.line.is_open:
            return NOT_JOINED
        return "" if line.add(frame, num_bytes) else GROUP_FULL

    def tell(self, to: Peer) -> None:
        """Tell a receiver of what was sent."""
        line = self.lines.get(to)
        if line is not None:
            line.tell()

    async def room(self, to: Peer) -> None:
        """Return when there is room for further frames, or no group to send them by."""
        line = self.lines.get(to)
        if line is not None:
            await line.room()

    def ended(self, sender: Peer, message: GroupEnded) -> None:
        """A receiver makes no group, or has ended it."""
        end = self.of(sender, message.group)
        if end is None:
            return
        pause_s, reason = REJOIN_S if end.line.is_open else REFUSED_S, message.reason[:MAX_REASON_CHARS]
        log.every(60.0, f"{sender.id} {reason}").warning("group_ended", peer=sender.id, reason=reason)
        self.lost(sender)
        self._not_before[sender] = self._loop.time() + pause_s

    def failed(self, peer: Peer, reason: str) -> None:
        """The group is over; another is tried, but not at once."""
        super().failed(peer, reason)
        self._not_before[peer] = self._loop.time() + REJOIN_S

    def lost(self, peer: Peer) -> None:
        """A life is over."""
        self._not_before.pop(peer, None)
        super().lost(peer)
