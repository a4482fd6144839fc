"""Contents by memory that two workers of one host share, and the link that takes it wherever it can."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from kvtransfer.link import BusLink, Frame, FrameHandler, LinkCounters, frame_bytes
from kvtransfer.meeting import Meeting
from kvtransfer.shm_receiver import ShmReceiver
from kvtransfer.shm_sender import REASONS, ShmSender
from protocol.messages import Peer
from runtime.errors import PayloadTooLarge
from runtime.logs import get_logger

MAX_FRAME_BYTES = 1 << 20
"""Two of the longest pieces."""
BURST_BYTES = 1 << 20
"""Laid down and told of together: some 0.3 ms of a core, in which the loop does nothing else."""

log = get_logger("shm")


class ShmLink:
    """Frames through the sender's segment. A receiver that shares no memory gets none."""

    name = "shm"
    max_frame_bytes = MAX_FRAME_BYTES
    burst_bytes = BURST_BYTES

    def __init__(self, folder: Path, me: Peer, segment_bytes: int) -> None:
        """``folder``: where the workers of this host meet. Raises ``OSError`` if it can't be used."""
        self._counted = LinkCounters()
        self.fallbacks: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._meeting = Meeting(folder)
        try:
            self._sender = ShmSender(self._meeting, me, segment_bytes)
        except OSError:
            self._meeting.close()
            raise
        self._receiver: ShmReceiver | None = None

    @property
    def counters(self) -> Mapping[str, LinkCounters]:
        """Its own."""
        if self._receiver is not None:
            self._counted.received_bytes = self._receiver.received_bytes
        return {self.name: self._counted}

    @property
    def sharing(self) -> list[str]:
        """In either direction."""
        return [*self._sender.sharing, *(self._receiver.sharing if self._receiver is not None else ())]

    def offer(self, to: Peer) -> None:
        """Begin to find out whether ``to`` reads this worker's memory."""
        self._sender.offer(to)

    def send(self, to: Peer, frame: Frame) -> str:
        """Lay a frame down; one that can't be is lost."""
        num_bytes = frame_bytes(frame)
        if num_bytes > self.max_frame_bytes:
            raise PayloadTooLarge(to.id, num_bytes, self.max_frame_bytes)
        self.try_send(to, frame, num_bytes)
        return self.name

    def try_send(self, to: Peer, frame: Frame, num_bytes: int) -> bool:
        """Whether a frame that isn't too long was laid down. Why it wasn't is counted, and said once a minute."""
        reason = self._sender.send(to, frame, num_bytes)
        if reason:
            self.fallbacks[reason] += 1
            log.every(60.0, f"{to.id} {reason}").info("memory_not_used", peer=to.id, reason=reason)
            return False
        self._counted.sent_bytes += num_bytes
        return True

    async def drain(self, to: Peer) -> None:
        """Tell the receiver of what was laid down, and let others have their turn."""
        self._sender.tell(to)
        await asyncio.sleep(0)

    async def receive(self, me: Peer, handler: FrameHandler) -> None:
        """Listen where senders look. Raises ``OSError``."""
        self._receiver = ShmReceiver(self._meeting, me, handler, self.max_frame_bytes)

    def lost(self, peer: Peer) -> None:
        """Its places are free."""
        self._sender.lost(peer)

    async def close(self) -> None:
        """End all lines and give the memory back."""
        self._sender.close()
        if self._receiver is not None:
            self._receiver.close()
        self._meeting.close()


class AutoLink:
    """Each frame by shared memory where its receiver has proved to share it and there is room, else by the bus."""

    name = "auto"
    burst_bytes = BURST_BYTES

    def __init__(self, shm: ShmLink, bus: BusLink) -> None:
        """Both belong to this link and are closed with it."""
        self.bus = bus.bus
        self._shm = shm
        self._by_bus = bus
        self._owed: set[Peer] = set()  # something went by the bus to them since the last drain

    @property
    def max_frame_bytes(self) -> int:
        """A frame may go either way."""
        return min(self._shm.max_frame_bytes, self._by_bus.max_frame_bytes)

    @property
    def counters(self) -> Mapping[str, LinkCounters]:
        """Of both."""
        return {**self._shm.counters, **self._by_bus.counters}

    @property
    def fallbacks(self) -> Mapping[str, int]:
        """Frames that went by the bus, by reason."""
        return self._shm.fallbacks

    @property
    def sharing(self) -> list[str]:
        """Workers that share memory with this one."""
        return self._shm.sharing

    def offer(self, to: Peer) -> None:
        """Find out whether memory is shared; until that is known the bus is taken."""
        self._shm.offer(to)

    def send(self, to: Peer, frame: Frame) -> str:
        """By either."""
        num_bytes = frame_bytes(frame)
        if num_bytes <= self.max_frame_bytes and self._shm.try_send(to, frame, num_bytes):
            return self._shm.name
        self._owed.add(to)
        return self._by_bus.send(to, frame)

    async def drain(self, to: Peer) -> None:
        """Without a server, this waits only for what went by the bus."""
        owed = to in self._owed  # as of now: others may send to the same worker and drain meanwhile
        await self._shm.drain(to)
        if owed:
            await self._by_bus.drain(to)
            self._owed.discard(to)

    async def receive(self, me: Peer, handler: FrameHandler) -> None:
        """From both; without a place to meet, from the bus alone."""
        try:
            await self._shm.receive(me, handler)
        except OSError as error:
            log.warning("memory_unusable", reason=str(error))
        await self._by_bus.receive(me, handler)

    def lost(self, peer: Peer) -> None:
        """What shared memory keeps for it is free."""
        self._shm.lost(peer)
        self._owed.discard(peer)

    async def close(self) -> None:
        """Close both."""
        await self._shm.close()
        await self._by_bus.close()
