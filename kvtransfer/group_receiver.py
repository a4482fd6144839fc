"""The receiving end of process groups: one for each sender that offers it."""

from __future__ import annotations

import queue
import re
from collections.abc import Callable

from kvtransfer.group_line import GroupEnd, GroupLine
from kvtransfer.link import FrameHandler
from kvtransfer.pair_group import RECEIVER, MakeGroup, PairGroup
from protocol.link_messages import GroupEnded, GroupOffer, GroupTold
from protocol.messages import Peer
from runtime.logs import get_logger
from runtime.postbox import Postbox

MAX_TOLD = 1 << 16
"""Frames of one sender that were told of and aren't here; it has ended the group before."""
NUM_BUFFERS = 4
"""Frames of one sender that have come and aren't handed on."""

_NAME = re.compile("[0-9a-f]{16}")

log = get_logger("group")


class _Line:
    """One sender."""

    def __init__(self, line: GroupLine, max_frame_bytes: int, on_frame: Callable[[memoryview], None]) -> None:
        self.line = line
        self._max_frame_bytes = max_frame_bytes
        self._on_frame = on_frame
        self._told: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._free: queue.SimpleQueue[bytearray | None] = queue.SimpleQueue()
        self._num_told = 0

    def told(self, told: GroupTold) -> str:
        """Frames come: "" if they can, else why the group is of no use any more."""
        if told.first < self._num_told:
            return ""  # heard twice
        if told.first > self._num_told:
            return f"frame {told.first} was told, {self._num_told} was next"
        if self._told.qsize() + len(told.sizes) > MAX_TOLD:
            return f"over {MAX_TOLD} frames were told"
        if any(not 0 <= size <= self._max_frame_bytes for size in told.sizes):
            return f"a frame has over {self._max_frame_bytes} bytes"
        self._num_told += len(told.sizes)
        for size in told.sizes:
            self._told.put(size)
        return ""

    def work(self, group: PairGroup) -> None:
        """In the thread: receive what was told."""
        for _ in range(NUM_BUFFERS):
            self._free.put(bytearray(self._max_frame_bytes))
        while (size := self._told.get()) is not None and (buffer := self._free.get()) is not None:
            if self.line.is_closed:
                return
            group.receive(buffer, size)
            self.line.on_loop(self._landed, buffer, size)

    def close(self) -> None:
        """Nothing is handed on any more."""
        self.line.close()
        self._told.put(None)
        self._free.put(None)

    def _landed(self, buffer: bytearray, size: int) -> None:
        if self.line.is_open:
            self._on_frame(memoryview(buffer)[:size])
            self._free.put(buffer)


class GroupReceiver(GroupEnd[_Line]):
    """Frames from all senders for one worker."""

    def __init__(
        self, postbox: Postbox, backend: str, device: str, make: MakeGroup, handler: FrameHandler, max_frame_bytes: int
    ) -> None:
        """``make`` makes a group of ``backend`` on ``device``. Needs a running loop."""
        super().__init__(postbox)
        self.received_bytes = 0
        self._backend = backend
        self._device = device
        self._make = make
        self._handler = handler
        self._max_frame_bytes = max_frame_bytes

    def offered(self, sender: Peer, offer: GroupOffer) -> None:
        """Join, in place of an older group of the same sender; or say why not."""
        if self.of(sender, offer.group) is not None:
            return
        self.lost(sender)
        refusal = self._refusal(sender, offer)
        if refusal:
            self.postbox.send(sender, GroupEnded(offer.group, refusal))
            return
        line = GroupLine(self.postbox, sender, offer.group, lambda reason: self.failed(sender, reason))
        self.begin(_Line(line, self._max_frame_bytes, self._take), self._make, RECEIVER)

    def told(self, sender: Peer, told: GroupTold) -> None:
        """Frames come."""
        end = self.of(sender, told.group)
        if end is None:
            self.postbox.send(sender, GroupEnded(told.group, "this worker has no such group"))
            return
        fault = end.told(told)
        if fault:
            self.failed(sender, fault)

    def ended(self, sender: Peer, message: GroupEnded) -> None:
        """A sender has left its group."""
        if self.of(sender, message.group) is not None:
            self.lost(sender)

    def _refusal(self, sender: Peer, offer: GroupOffer) -> str:
        if not _NAME.fullmatch(offer.group):
            return "that is no group's name"
        if offer.backend != self._backend:
            return f"this worker's groups are of {self._backend}"
        if offer.device and offer.device == self._device:
            return "both workers are on one GPU"
        return self.no_room(sender)

    def _take(self, frame: memoryview) -> None:
        self.received_bytes += len(frame)
        try:
            self._handler(frame)
        except Exception:
            log.exception("frame_handler_failed")
