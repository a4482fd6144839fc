"""Frames that are longer than one message, put together from their numbered parts."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from protocol.codec import MAX_FRAME_BYTES
from protocol.errors import WireError
from protocol.messages import Part, Peer

MAX_OPEN_FRAMES = 256
"""Frames of which some parts are missing; the oldest is forgotten first, its sender repeats it."""

MAX_OPEN_BYTES = 2 * MAX_FRAME_BYTES
"""What they may hold in all."""

PART_COST_BYTES = 256
"""Counted on top of each part, so that a flood of tiny ones is bounded too."""

MAX_FRAME_ID_CHARS = 64


@dataclass(slots=True)
class _Frame:
    num_parts: int
    bodies: dict[int, bytes] = field(default_factory=dict)
    num_bytes: int = 0


class OpenFrames:
    """Frames on their way, of all senders."""

    def __init__(self) -> None:
        """None yet."""
        self._frames: OrderedDict[tuple[Peer, str], _Frame] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        """How many are open."""
        return len(self._frames)

    def add(self, sender: Peer, part: Part) -> bytes | None:
        """Return the whole frame once its last missing part came. Raises ``WireError`` for a part that can't be one."""
        fits = 0 < part.num_parts <= MAX_FRAME_BYTES // max(1, len(part.body)) + 1
        if not fits or not 0 <= part.index < part.num_parts or len(part.frame_id) > MAX_FRAME_ID_CHARS:
            raise WireError(f"part {part.index} of {part.num_parts} is out of bounds")
        key = (sender, part.frame_id)
        frame = self._frames.setdefault(key, _Frame(part.num_parts))
        if frame.num_parts != part.num_parts:
            raise WireError(f"part {part.index} of {part.num_parts} belongs to a frame of {frame.num_parts}")
        if part.index not in frame.bodies:
            frame.bodies[part.index] = part.body
            frame.num_bytes += len(part.body) + PART_COST_BYTES
            self.num_bytes += len(part.body) + PART_COST_BYTES
        if len(frame.bodies) == frame.num_parts:
            self._forget(key)
            return b"".join(frame.bodies[index] for index in range(frame.num_parts))
        while len(self._frames) > MAX_OPEN_FRAMES or self.num_bytes > MAX_OPEN_BYTES:
            self._forget(next(iter(self._frames)))
        return None

    def _forget(self, key: tuple[Peer, str]) -> None:
        self.num_bytes -= self._frames.pop(key).num_bytes
