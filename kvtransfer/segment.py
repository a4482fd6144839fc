"""A sender's memory, which its receivers read: places in an anonymous file, each with a number of its own.

Written and read by system calls, never mapped: what can't be had is an error and not a signal that ends the process.
"""

from __future__ import annotations

import os
import secrets
import struct
from dataclasses import dataclass

from kvtransfer.link import Frame

PROOF_BYTES = 16
"""A random number at the segment's start: who reads it back shares this memory."""
ALIGNMENT = 64
_NUMBER = struct.Struct("<Q")
NUMBER_BYTES = _NUMBER.size
_NOBODYS = bytes(NUMBER_BYTES)
MAX_STRETCHES = 512
"""Stretches of one frame that go out in one call (a system takes 1,024 at the most); more are joined first."""


@dataclass(frozen=True, slots=True)
class Place:
    """``number`` stands in front of the frame's bytes as long as they are valid; 0 never does."""

    number: int
    offset: int
    num_bytes: int

    @property
    def span(self) -> int:
        """Bytes of the segment that are taken."""
        return -(-(NUMBER_BYTES + self.num_bytes) // ALIGNMENT) * ALIGNMENT


class Segment:
    """Owned and written by one process. Freed places are taken again from the start on, so that caches stay warm."""

    def __init__(self, num_bytes: int) -> None:
        """Memory is taken as it is first used, up to ``num_bytes``. Raises ``OSError``."""
        self.num_bytes = num_bytes
        self.held_bytes = 0
        self.proof = secrets.token_bytes(PROOF_BYTES)
        self.fd = os.memfd_create("kvferry-link")
        try:
            os.ftruncate(self.fd, num_bytes)
            os.pwrite(self.fd, self.proof, 0)
        except OSError:
            self.close()
            raise
        self._free: list[tuple[int, int]] = [(ALIGNMENT, num_bytes)]  # [start, end), sorted, never adjacent
        self._last_number = 0

    def put(self, frame: Frame, num_bytes: int) -> Place | None:
        """Write a frame of ``num_bytes``; ``None`` if there is no place for it. Raises ``OSError`` without memory."""
        self._last_number += 1
        place = self._take(self._last_number, num_bytes)
        if place is None:
            return None
        parts = [b"".join(frame)] if len(frame) > MAX_STRETCHES else frame
        try:
            # In this order: whoever reads meanwhile finds no number, and the number only when all bytes are there.
            written = os.pwritev(self.fd, [_NOBODYS, *parts], place.offset)
            if written != NUMBER_BYTES + num_bytes:
                raise OSError(f"{written} bytes of a frame of {num_bytes} could be written")
            os.pwrite(self.fd, _NUMBER.pack(place.number), place.offset)
        except OSError:
            self._give(place)
            raise
        return place

    def free(self, place: Place) -> None:
        """The place may be taken again; who still reads there will find that its number is gone."""
        os.pwrite(self.fd, _NOBODYS, place.offset)
        self._give(place)

    def close(self) -> None:
        """Give the file back; it is gone when its readers have let go too. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _take(self, number: int, num_bytes: int) -> Place | None:
        """The first gap that is wide enough."""
        for index, (start, end) in enumerate(self._free):
            place = Place(number, start, num_bytes)
            if place.span <= end - start:
                left = [(start + place.span, end)] if start + place.span < end else []
                self._free[index : index + 1] = left
                self.held_bytes += place.span
                return place
        return None

    def _give(self, place: Place) -> None:
        start, end = place.offset, place.offset + place.span
        self.held_bytes -= place.span
        index = next((i for i, gap in enumerate(self._free) if gap[0] >= end), len(self._free))
        first = last = index
        if index < len(self._free) and self._free[index][0] == end:
            end, last = self._free[index][1], index + 1
        if index and self._free[index - 1][1] == start:
            start, first = self._free[index - 1][0], index - 1
        self._free[first:last] = [(start, end)]


class SegmentReader:
    """Another process's segment."""

    def __init__(self, fd: int) -> None:
        """Take over ``fd``."""
        self._fd = fd
        os.set_inheritable(fd, False)  # one that came by a socket would go on to child processes

    def proof(self) -> bytes:
        """The random number at the start."""
        return os.pread(self._fd, PROOF_BYTES, 0)

    def read(self, place: Place, into: memoryview) -> bool:
        """Copy a place's number and frame into ``into``, which is as long as both; whether all of it is valid.

        The number is looked at before and after. A sender that gave the place to another frame meanwhile took the
        number away first.
        """
        want = _NUMBER.pack(place.number)
        try:
            whole = place.number > 0 and os.preadv(self._fd, [into], place.offset) == len(into)
            return whole and into[:NUMBER_BYTES] == want == os.pread(self._fd, NUMBER_BYTES, place.offset)
        except OSError:
            return False

    def close(self) -> None:
        """Let go. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
