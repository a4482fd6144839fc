"""What links have in common that go past the bus, to receivers who have proved that they can be reached so."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from kvtransfer.link import Frame, FrameHandler, LinkCounters, frame_bytes
from protocol.messages import Peer
from runtime.errors import PayloadTooLarge
from runtime.logs import get_logger

MAX_FRAME_BYTES = 1 << 20
"""Two of the longest pieces."""
BURST_BYTES = 1 << 20
"""Taken and told of together: some 0.3 ms of a core, in which the loop does nothing else."""

log = get_logger("link")


class FrameSender(Protocol):
    """Frames of one worker to all receivers."""

    @property
    def sharing(self) -> Sequence[str]:
        """Receivers that have proved that they are reached."""

    def offer(self, to: Peer) -> None:
        """Begin to find out whether ``to`` can be reached. Never waits."""

    def send(self, to: Peer, frame: Frame, num_bytes: int) -> str:
        """Take a frame for a receiver: "" if that was done, else why not."""

    def tell(self, to: Peer) -> None:
        """Tell a receiver of what was taken."""

    def lost(self, peer: Peer) -> None:
        """A life is over: what is kept for it is free."""

    def close(self) -> None:
        """Nothing goes any more. Idempotent."""


class FrameReceiver(Protocol):
    """Frames from all senders to one worker."""

    received_bytes: int

    @property
    def sharing(self) -> Sequence[str]:
        """Senders that this worker hears."""

    def lost(self, peer: Peer) -> None:
        """A life is over: what is kept for it is free."""

    def close(self) -> None:
        """Nothing comes any more. Idempotent."""


class DirectLink:
    """Frames by a way of its own. A receiver that has proved nothing gets none."""

    name: str
    max_frame_bytes = MAX_FRAME_BYTES
    burst_bytes = BURST_BYTES

    def __init__(self, name: str, sender: FrameSender, reasons: Iterable[str]) -> None:
        """``reasons``: why ``sender`` may not take a frame."""
        self.name = name
        self._sender = sender
        self._receiver: FrameReceiver | None = None
        self._counted = LinkCounters()
        self.fallbacks: Counter[str] = Counter(dict.fromkeys(reasons, 0))

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
        """Begin to find out whether ``to`` can be reached."""
        self._sender.offer(to)

    def send(self, to: Peer, frame: Frame, *, again: bool = False) -> str:
        """Take a frame; one that can't be is lost."""
        num_bytes = frame_bytes(frame)
        if num_bytes > self.max_frame_bytes:
            raise PayloadTooLarge(to.id, num_bytes, self.max_frame_bytes)
        self.try_send(to, frame, num_bytes)
        return self.name

    def try_send(self, to: Peer, frame: Frame, num_bytes: int) -> bool:
        """Whether a frame that isn't too long was taken. Why it wasn't is counted, and said once a minute."""
        reason = self._sender.send(to, frame, num_bytes)
        if reason:
            self.fallbacks[reason] += 1
            log.every(60.0, f"{to.id} {reason}").info("link_not_used", link=self.name, peer=to.id, reason=reason)
            return False
        self._counted.sent_bytes += num_bytes
        return True

    async def drain(self, to: Peer) -> None:
        """Tell the receiver of what was taken, and let others have their turn."""
        self._sender.tell(to)
        await asyncio.sleep(0)

    async def receive(self, me: Peer, handler: FrameHandler) -> None:
        """Be there for senders. Raises ``OSError``."""
        self._receiver = self._listen(me, handler)

    def lost(self, peer: Peer) -> None:
        """What is kept for it is free."""
        self._sender.lost(peer)
        if self._receiver is not None:
            self._receiver.lost(peer)

    async def close(self) -> None:
        """End both ends."""
        self._sender.close()
        if self._receiver is not None:
            self._receiver.close()

    def _listen(self, me: Peer, handler: FrameHandler) -> FrameReceiver:
        raise NotImplementedError
