"""The link that takes a direct way wherever it can, and another where it can't."""

from __future__ import annotations

from collections.abc import Mapping

from kvtransfer.direct_link import BURST_BYTES, DirectLink
from kvtransfer.link import Frame, FrameHandler, Link, LinkCounters, frame_bytes
from protocol.messages import Peer
from runtime.logs import get_logger

log = get_logger("link")


class AutoLink:
    """Each frame by the direct link where its receiver is reached so and there is room, else by the other."""

    name = "auto"
    burst_bytes = BURST_BYTES

    def __init__(self, direct: DirectLink, otherwise: Link) -> None:
        """Both belong to this link and are closed with it."""
        self._direct = direct
        self._otherwise = otherwise
        self._owed: set[Peer] = set()  # something went the other way to them since the last drain

    @property
    def max_frame_bytes(self) -> int:
        """A frame may go either way."""
        return min(self._direct.max_frame_bytes, self._otherwise.max_frame_bytes)

    @property
    def counters(self) -> Mapping[str, LinkCounters]:
        """Of both."""
        return {**self._direct.counters, **self._otherwise.counters}

    @property
    def fallbacks(self) -> Mapping[str, int]:
        """Frames that couldn't go by the better way, by reason."""
        return {**self._direct.fallbacks, **self._otherwise.fallbacks}

    @property
    def sharing(self) -> list[str]:
        """Workers that are reached directly."""
        return [*self._direct.sharing, *self._otherwise.sharing]

    def offer(self, to: Peer) -> None:
        """Find out whether ``to`` is reached directly; until that is known the other link is taken."""
        self._direct.offer(to)
        if to.id not in self._direct.sharing:
            self._otherwise.offer(to)

    def send(self, to: Peer, frame: Frame, *, again: bool = False) -> str:
        """By either; again by the other, since a direct way that has failed may not know it yet."""
        num_bytes = frame_bytes(frame)
        if not again and num_bytes <= self.max_frame_bytes and self._direct.try_send(to, frame, num_bytes):
            return self._direct.name
        self._owed.add(to)
        return self._otherwise.send(to, frame, again=again)

    async def drain(self, to: Peer) -> None:
        """Without a server, this waits only for what went by the bus."""
        owed = to in self._owed  # as of now: others may send to the same worker and drain meanwhile
        await self._direct.drain(to)
        if owed:
            await self._otherwise.drain(to)
            self._owed.discard(to)

    async def receive(self, me: Peer, handler: FrameHandler) -> None:
        """From both; where the direct way can't be had, from the other alone."""
        try:
            await self._direct.receive(me, handler)
        except OSError as error:
            log.warning("link_unusable", link=self._direct.name, reason=str(error))
        await self._otherwise.receive(me, handler)

    def lost(self, peer: Peer) -> None:
        """What is kept for it is free."""
        self._direct.lost(peer)
        self._otherwise.lost(peer)
        self._owed.discard(peer)

    async def close(self) -> None:
        """Close both."""
        await self._direct.close()
        await self._otherwise.close()
