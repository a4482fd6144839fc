"""How the queries of a ragged batch lie in tiles: made on the CPU once a batch, for every layer of a model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

ROWS, FLOAT32_ROWS = 128, 32
"""Queries of a tile, positions times heads: two warpgroups of the largest product; float32 is multiplied by ordinary
cores, for which that would be too much to hold."""


def tile_rows(group: int, dtype: torch.dtype) -> int:
    """Queries of a tile, where each KV head has ``group`` query heads."""
    return max(FLOAT32_ROWS if dtype == torch.float32 else ROWS, spread(group))


def spread(group: int) -> int:
    """Rows of a tile for each position: a power of two."""
    return int(triton.next_power_of_2(group))


def query_tiles(query_lens: Sequence[int], context_lens: Sequence[int], group: int, dtype: torch.dtype) -> Tensor:
    """Tiles that hold a batch's queries: int32 ``[num_tiles, 2]``, sequence and first position, on the CPU.

    ``query_lens``: new tokens of each sequence; ``context_lens``: all its tokens, these included; ``group``: query
    heads of one KV head; ``dtype``: theirs. A tile starts at a multiple of its positions, counted from the context's
    first token. Tiles with long contexts come first, so that none of them is left for the end. Rows of [-1, 0] may be
    added behind: kernels pass over them.
    """
    size = tile_rows(group, dtype) // spread(group)
    tiles = [
        (seq, start)
        for seq, (new, length) in enumerate(zip(query_lens, context_lens, strict=True))
        for start in range((length - new) // size * size, length, size)
        if new
    ]
    tiles.sort(key=lambda tile: -tile[1])
    return torch.tensor(tiles, dtype=torch.int32).reshape(-1, 2)
