"""Contents by memory that two workers of one host share."""

from __future__ import annotations

from pathlib import Path

from kvtransfer.direct_link import DirectLink
from kvtransfer.link import FrameHandler
from kvtransfer.meeting import Meeting
from kvtransfer.shm_receiver import ShmReceiver
from kvtransfer.shm_sender import REASONS, ShmSender
from protocol.messages import Peer


class ShmLink(DirectLink):
    """Frames through the sender's segment. A receiver that shares no memory gets none."""

    def __init__(self, folder: Path, me: Peer, segment_bytes: int) -> None:
        """``folder``: where the workers of this host meet. Raises ``OSError`` if it can't be used."""
        self._meeting = Meeting(folder)
        try:
            sender = ShmSender(self._meeting, me, segment_bytes)
        except OSError:
            self._meeting.close()
            raise
        super().__init__("shm", sender, REASONS)

    async def close(self) -> None:
        """End all lines and give the memory back."""
        await super().close()
        self._meeting.close()

    def _listen(self, me: Peer, handler: FrameHandler) -> ShmReceiver:
        return ShmReceiver(self._meeting, me, handler, self.max_frame_bytes)
