"""Bytes of blocks, out of one pool and into another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.block_runs import runs
from engine.layout import KVLayout
from engine.pool_memory import LayerBytes, PoolMemory
from kvtransfer.link import Buffer
from kvtransfer.pieces import PieceError, PieceRange

MAX_RUNS = 8
"""Runs of blocks of one piece that are named one by one; more are gathered in one copy."""


class PoolContents:
    """Reads and writes ranges of blocks of a pool that this process maps."""

    def __init__(self, pool: PoolMemory) -> None:
        """Views only; nothing is copied."""
        self.layout: KVLayout = pool.layout
        self._layers: list[list[LayerBytes]] = [pool.layers(i) for i in range(len(pool.layout.groups))]

    def read(self, where: PieceRange, table: Sequence[int]) -> list[Buffer]:
        """K of the range's blocks and heads, then V, as stretches. ``table`` is the branch's own blocks.

        Nothing is copied as long as blocks are whole: they are the pool's own bytes, to be read before it changes.
        """
        layer, blocks, heads = self._place(where, table)
        stretches = [numbers for _, numbers in runs(blocks)]
        if len(stretches) > MAX_RUNS:
            return [half[blocks, heads].data for half in (layer.k, layer.v)]
        return [np.ascontiguousarray(half[run, heads]).data for half in (layer.k, layer.v) for run in stretches]

    def write(self, where: PieceRange, table: Sequence[int], data: memoryview) -> None:
        """The counterpart of ``read``. Raises ``PieceError`` when the range or its size doesn't fit the table."""
        layer, blocks, heads = self._place(where, table)
        if len(data) != where.num_bytes(self.layout):
            raise PieceError(f"{len(data)} bytes for a range of {where.num_bytes(self.layout)}")
        shape = (where.num_blocks, where.num_heads, layer.k.shape[2])
        half = len(data) // 2
        stretches = [numbers for _, numbers in runs(blocks)]
        place = stretches[0] if len(stretches) == 1 else blocks
        layer.k[place, heads] = np.frombuffer(data[:half], np.uint8).reshape(shape)
        layer.v[place, heads] = np.frombuffer(data[half:], np.uint8).reshape(shape)

    def check(self, where: PieceRange, table: Sequence[int]) -> None:
        """Raises ``PieceError`` unless the range lies inside the layout and the table."""
        if where.group >= len(self.layout.groups):
            raise PieceError(f"there is no cache group {where.group}")
        group = self.layout.groups[where.group]
        ok = (
            where.layer < len(group.layers)
            and where.num_heads > 0
            and where.first_head + where.num_heads <= group.num_kv_heads
            and where.num_blocks > 0
            and where.first_block + where.num_blocks <= len(table)
        )
        if not ok:
            raise PieceError(f"{where} is out of range")

    def _place(self, where: PieceRange, table: Sequence[int]) -> tuple[LayerBytes, list[int], slice]:
        self.check(where, table)
        blocks = list(table[where.first_block : where.first_block + where.num_blocks])
        heads = slice(where.first_head, where.first_head + where.num_heads)
        return self._layers[where.group][where.layer], blocks, heads
