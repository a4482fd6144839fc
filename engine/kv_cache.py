"""The paged cache as tensors: views of one flat buffer, in the order that engine.layout fixes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.layout import CacheGroup, KVLayout


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's blocks.

    ``k``: ``[num_blocks, kv_heads, head_dim, block_size]``; ``v``: ``[num_blocks, kv_heads, block_size, head_dim]``.
    In dtypes of 16 bits pairs of neighbors lie together: ``[num_blocks, kv_heads, head_dim / 2, block_size, 2]`` and
    ``[num_blocks, kv_heads, block_size / 2, head_dim, 2]``. For a GPU's kernels both are ``[num_blocks, kv_heads,
    block_size, head_dim]``.
    """

    k: Tensor
    v: Tensor


def cache_bytes(layout: KVLayout, num_blocks: int) -> int:
    """Bytes of ``num_blocks`` blocks over all groups and layers."""
    return layout.block_bytes * num_blocks


def map_cache(buffer: memoryview | bytearray, layout: KVLayout, num_blocks: int) -> list[LayerCache]:
    """View a writable buffer of ``cache_bytes`` bytes as K and V, by model layer number. Copies nothing."""
    return split_cache(torch.frombuffer(buffer, dtype=torch.uint8), layout, num_blocks)


def split_cache(flat: Tensor, layout: KVLayout, num_blocks: int) -> list[LayerCache]:
    """View a flat uint8 tensor of at least ``cache_bytes`` bytes, on any device, by model layer number."""
    dtype = getattr(torch, layout.dtype)
    views: dict[int, LayerCache] = {}
    start = 0

    def take(*shape: int) -> Tensor:
        nonlocal start
        size = layout.item_bytes * torch.Size(shape).numel()
        part = flat[start : start + size].view(dtype).view(shape)
        start += size
        return part

    for group in layout.groups:
        k_shape, v_shape = _shapes(layout, group)
        for layer in group.layers:
            k = take(num_blocks, group.num_kv_heads, *k_shape)
            views[layer] = LayerCache(k, take(num_blocks, group.num_kv_heads, *v_shape))
    return [views[layer] for layer in sorted(views)]


def _shapes(layout: KVLayout, group: CacheGroup) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """One head of a block, in K and in V."""
    dim, block = group.head_dim, layout.block_size
    if layout.is_plain:
        return (block, dim), (block, dim)
    if layout.in_pairs:
        return (dim // 2, block, 2), (block // 2, dim, 2)
    return (dim, block), (block, dim)


def copy_block(cache: Sequence[LayerCache], src: int, dst: int) -> None:
    """Copy block ``src`` over block ``dst`` in every given layer, for copy-on-write.

    With several groups pass one group's layers: each group counts its blocks by itself.
    """
    for layer in cache:
        layer.k[dst].copy_(layer.k[src])
        layer.v[dst].copy_(layer.v[src])
