"""Contents by a process group of each pair of workers: gloo between CPUs, NCCL between GPUs.

What must be agreed on, and what comes with each frame, goes over the bus; bytes go from worker to worker.
"""

from __future__ import annotations

import asyncio

from kvtransfer.direct_link import DirectLink
from kvtransfer.group_receiver import GroupReceiver
from kvtransfer.group_sender import REASONS, GroupSender
from kvtransfer.link import FrameHandler
from kvtransfer.pair_group import MakeGroup
from protocol.link_messages import GroupEnded, GroupOffer, GroupTold, GroupWord
from protocol.messages import Peer
from runtime.postbox import Postbox


class GroupLink(DirectLink):
    """Frames through groups of two. A receiver that hasn't joined gets none."""

    def __init__(self, postbox: Postbox, backend: str, make: MakeGroup, device: str = "") -> None:
        """``make`` makes a group of ``backend``, on the GPU that ``device`` names. Takes over the links' messages."""
        self._postbox = postbox
        self._backend = backend
        self._make = make
        self._device = device
        self._groups_out = GroupSender(postbox, backend, device, make)
        self._groups_in: GroupReceiver | None = None
        super().__init__(backend, self._groups_out, REASONS)
        postbox.on(GroupOffer, self._offered)
        postbox.on(GroupWord, self._word)
        postbox.on(GroupEnded, self._ended)
        postbox.on(GroupTold, self._told)

    async def drain(self, to: Peer) -> None:
        """Tell the receiver of what was taken, and wait until there is room for more."""
        await super().drain(to)
        await self._groups_out.room(to)

    async def close(self) -> None:
        """Leave all groups and wait for their threads."""
        await super().close()
        await asyncio.to_thread(self._groups_out.join)
        if self._groups_in is not None:
            await asyncio.to_thread(self._groups_in.join)

    def _listen(self, me: Peer, handler: FrameHandler) -> GroupReceiver:
        receiver = GroupReceiver(self._postbox, self._backend, self._device, self._make, handler, self.max_frame_bytes)
        self._groups_in = receiver
        return receiver

    def _offered(self, sender: Peer, offer: GroupOffer) -> None:
        if self._groups_in is None:
            self._postbox.send(sender, GroupEnded(offer.group, "this worker receives nothing"))
        else:
            self._groups_in.offered(sender, offer)

    def _word(self, sender: Peer, word: GroupWord) -> None:
        self._groups_out.word(sender, word)
        if self._groups_in is not None:
            self._groups_in.word(sender, word)

    def _ended(self, sender: Peer, message: GroupEnded) -> None:
        self._groups_out.ended(sender, message)
        if self._groups_in is not None:
            self._groups_in.ended(sender, message)

    def _told(self, sender: Peer, told: GroupTold) -> None:
        if self._groups_in is not None:
            self._groups_in.told(sender, told)
