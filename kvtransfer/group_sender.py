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

MAX_HELD_BYTES = 32 << 20
"""Of frames for one receiver that wait for the thread: twice the credit that a receiver gives to all."""
MAX_HELD = 1 << 15
"""Such frames."""
REJOIN_S = 10.0
"""After a group that failed no other is tried with the same receiver for so long."""
REFUSED_S = 60.0
"""After a receiver that refused: its reasons last."""
MAX_REASON_CHARS = 200

log = get_logger("group")


class _Line:
    """One receiver."""

    def __init__(self, line: GroupLine, postbox: Postbox) -> None:
        self.line = line
        self._postbox = postbox
        self._untold: list[bytearray] = []
        self._waiting: queue.SimpleQueue[bytearray | None] = queue.SimpleQueue()
        self._freed = asyncio.Event()
        self._num_awaiting = 0
        self._num_told = 0
        self._added_bytes = 0
        self._sent_bytes = 0  # written by the thread alone

    @property
    def _held_bytes(self) -> int:
        return self._added_bytes - self._sent_bytes

    def add(self, frame: Frame, num_bytes: int) -> bool:
        """Whether there was room for a frame. It goes with the next ``tell``."""
        if self._held_bytes + num_bytes > MAX_HELD_BYTES or self._waiting.qsize() + len(self._untold) >= MAX_HELD:
            return False
        self._untold.append(bytearray().join(frame))
        self._added_bytes += num_bytes
        return True

    def tell(self) -> None:
        """Tell of the frames that were added, and let them go."""
        if not self._untold or not self.line.is_open:
            return
        told = GroupTold(self.line.group, self._num_told, tuple(map(len, self._untold)))
        self._postbox.send(self.line.peer, told)
        self._num_told += len(self._untold)
        for frame in self._untold:
            self._waiting.put(frame)
        self._untold.clear()

    async def room(self) -> None:
        """Return when half of the room is free, or the group is over."""
        self._num_awaiting += 1  # before the look: the thread frees first and then looks at this
        try:
            while not self.line.is_closed and self._held_bytes > MAX_HELD_BYTES // 2:
                self._freed.clear()
                await self._freed.wait()
        finally:
            self._num_awaiting -= 1

    def work(self, group: PairGroup) -> None:
        """In the thread: send what was told."""
        while (frame := self._waiting.get()) is not None and not self.line.is_closed:
            group.send(frame, len(frame))
            self._sent_bytes += len(frame)
            if self._num_awaiting:
                self.line.on_loop(self._freed.set)

    def close(self) -> None:
        """What isn't sent yet is lost."""
        self.line.close()
        self._untold.clear()
        self._waiting.put(None)
        self._freed.set()


class GroupSender(GroupEnd[_Line]):
    """Frames of one worker to all receivers."""

    def __init__(self, postbox: Postbox, backend: str, device: str, make: MakeGroup) -> None:
        """``make`` makes a group of ``backend`` on ``device``. Needs a running loop."""
        super().__init__(postbox)
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
        self.postbox.send(to, GroupOffer(group, self._backend, self._device))
        self.begin(_Line(line, self.postbox), self._make, SENDER)

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
