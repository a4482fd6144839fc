"""Which of a list of blocks lie together. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence


def runs(blocks: Sequence[int]) -> list[tuple[slice, slice]]:
    """Stretches of block numbers that follow each other: their places in ``blocks``, and their numbers."""
    starts = [i for i in range(len(blocks)) if not i or blocks[i] != blocks[i - 1] + 1]
    ends = [*starts[1:], len(blocks)]
    return [(slice(i, j), slice(blocks[i], blocks[i] + j - i)) for i, j in zip(starts, ends, strict=bool(starts))]
