"""The pool's bytes, shared by a worker's engine and io process: one anonymous file, mapped by both.

Page 0 holds the progress counter, and the marks of the keys that are in the step being computed: whose step
it was can still be read when the engine has died in it. Block contents follow: layer after layer, K of all blocks
before V of all; or, where a GPU computes, block after block, so that one is copied to it and from it in one piece.
Imports no torch.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from engine.api import Key
from engine.layout import KVLayout

HEADER_BYTES = mmap.PAGESIZE
_WORDS = HEADER_BYTES // 8
_MAX_MARKS = _WORDS - 2

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """One layer's blocks as bytes: ``k`` and ``v`` are ``[num_blocks, kv_heads, bytes_per_head]``."""

    k: Bytes
    v: Bytes


def mark(key: Key) -> int:
    """64 bits that stand for a key."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little")


class PoolMemory:
    """``num_blocks`` blocks of a layout, in memory that another process can map by its file descriptor."""

    def __init__(self, layout: KVLayout, num_blocks: int, fd: int | None = None) -> None:
        """Make the memory, or map and take over ``fd``, a descriptor of another ``PoolMemory``'s file."""
        self.layout = layout
        self.num_blocks = num_blocks
        size = HEADER_BYTES + layout.block_bytes * num_blocks
        if fd is None:
            fd = os.memfd_create("kvferry-pool")
            os.ftruncate(fd, size)
        elif os.fstat(fd).st_size != size:
            raise ValueError(f"pool file has {os.fstat(fd).st_size} bytes, layout needs {size}")
        self.fd = fd
        self._close = weakref.finalize(self, os.close, fd)
        self._map = mmap.mmap(fd, size)
        self._words = np.frombuffer(self._map, dtype=np.uint64, count=_WORDS)

    @property
    def buffer(self) -> memoryview:
        """The blocks' bytes, writable."""
        return memoryview(self._map)[HEADER_BYTES:]

    @property
    def progress(self) -> int:
        """Layers computed since start; moves while the engine makes progress."""
        return int(self._words[0])

    def count_layers(self, count: int) -> None:
        """So many more layers are done. Only the engine calls this."""
        self._words[0] += count

    def begin_step(self, marks: Iterable[int]) -> None:
        """The engine computes for the keys of these marks now (the first ``_MAX_MARKS``, more fit no page)."""
        marks = list(islice(marks, _MAX_MARKS))
        self._words[2 : 2 + len(marks)] = marks
        self._words[1] = len(marks)

    def end_step(self) -> None:
        """The engine is between steps."""
        self._words[1] = 0

    def in_step(self, key: Key) -> bool:
        """Whether ``key`` is in the step that is being computed, or was when the engine died."""
        return mark(key) in self._words[2 : 2 + int(self._words[1])]

    def layers(self, group: int) -> list[LayerBytes]:
        """Byte views of a group's layers, in the group's order. Heads of a block follow each other without a gap."""
        layout = self.layout
        groups = enumerate(layout.groups[:group])
        before = sum(layout.layer_block_bytes(i) * len(g.layers) for i, g in groups)
        half, heads = layout.half_bytes(group), layout.groups[group].num_kv_heads
        step, planes = (layout.block_bytes, 1) if layout.is_plain else (half, self.num_blocks)
        shape, strides = (self.num_blocks, heads, half // heads), (step, half // heads, 1)

        def view(first: int) -> Bytes:
            return np.ndarray(shape, np.uint8, self._map, HEADER_BYTES + first * planes, strides)

        starts = range(before, before + 2 * half * len(layout.groups[group].layers), 2 * half)
        return [LayerBytes(view(start), view(start + half)) for start in starts]

    def close(self) -> None:
        """Drop the descriptor; the mapping ends with the process or with its last view."""
        self._close()
        self.fd = -1
