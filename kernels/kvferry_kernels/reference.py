"""The torch twin of each operation, which defines what is right. Any device, any floating dtype.

All compute in float32 and round once, to nearest even. But for ``linear``, a row's result depends on its own context
alone: attention works in tiles of fixed shape that start at fixed positions, so that a token is always
the same row of the same product, however its sequence was batched or cut into chunks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

QUERY_TILE = 16
"""Query positions in a tile; tiles start at multiples of it."""

KEY_BLOCKS = 4
"""Cache blocks in a tile of keys."""


LINEAR_TILE = 32
"""Outputs that lie together in a packed weight."""

FOUR = 4
"""Inputs that lie together in a packed weight of 8-bit integers."""

GROUP, WHOLE_ROW = 128, 32_768
"""Numbers of a row that share a scale when it is quantized: few where some may be far larger than the others, else
all of them, as far as their products have sums in 32 bits."""

INT8_MAX, INT8_ZERO = 127, 128
"""Largest quantized number, and what stands for 0 in packed weights."""

LEAST_TOP = 1e-30
"""Numbers that share a scale and of which none is as large count as 0."""

PAIRED = 5
"""Axes of a cache whose numbers lie in pairs."""


class QuantizedRows(NamedTuple):
    """Rows of 8-bit integers, from -127 to 127; a row's number is about integer * scale of its group.

    ``numbers``: int8 ``[num_rows, size]``, the size rounded up to a multiple of 4. ``scales``: float32
    ``[num_rows, groups]``, one for each ``group`` numbers. ``corrections``: int32, -128 times the sum of a group's
    numbers.
    """

    numbers: Tensor
    scales: Tensor
    corrections: Tensor
    group: int


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """See ops.rms_norm."""
    total = x.float()
    if residual is not None:
        residual += x
        total = residual
    return _normalize(total, weight, eps).to(x.dtype)


def silu_and_mul(x: Tensor) -> Tensor:
    """See ops.silu_and_mul."""
    gate, up = x.float().chunk(2, dim=-1)
    return (gate / (1 + torch.exp(-gate)) * up).to(x.dtype)


def rope_and_cache(
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
) -> Tensor:
    """See ops.rope_and_cache."""
    kv_heads, dim, _ = cache_sizes(k_cache, v_cache)
    heads = qkv.view(len(qkv), -1, dim)
    q, k, v = heads[:, : -2 * kv_heads], heads[:, -2 * kv_heads : -kv_heads], heads[:, -kv_heads:]
    q, k = q.float(), k.float()
    if q_norm is not None:
        q = _normalize(q, q_norm, eps)
    if k_norm is not None:
        k = _normalize(k, k_norm, eps)
    row_cos, row_sin = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
    write_cache(k_cache, v_cache, slots, _rotate(k, row_cos, row_sin), v)
    return _rotate(q, row_cos, row_sin).to(qkv.dtype)


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    scale: float,
) -> Tensor:
    """See ops.paged_attention."""
    kv_heads, dim, block_size = cache_sizes(k_cache, v_cache)
    tile_of_row, row_in_tile, tile_seq, tile_start = _query_tiles(query_starts, context_lens)
    num_tiles, group = len(tile_seq), q.shape[1] // kv_heads
    tiles = q.new_zeros(num_tiles, QUERY_TILE, kv_heads, group, dim, dtype=torch.float32)
    tiles[tile_of_row, row_in_tile] = q.float().view(-1, kv_heads, group, dim) * scale
    query = tiles.permute(0, 2, 1, 3, 4).reshape(num_tiles * kv_heads, QUERY_TILE * group, dim)
    last_position = tile_start[:, None] + torch.arange(QUERY_TILE, device=q.device)
    lens, tables = context_lens.long()[tile_seq], block_tables.long()[tile_seq]
    width = KEY_BLOCKS * block_size
    tables = functional.pad(tables, (0, -tables.shape[1] % KEY_BLOCKS))
    top = query.new_full((*query.shape[:2], 1), -torch.inf)
    total, mixed = torch.zeros_like(top), torch.zeros_like(query)
    for start in range(0, int(context_lens.max()), width):
        blocks = tables[:, start // block_size : start // block_size + KEY_BLOCKS]
        positions = torch.arange(start, start + width, device=q.device)
        keys = in_order_k(k_cache[blocks]).float().permute(0, 2, 3, 1, 4).reshape(-1, dim, width)
        values = in_order_v(v_cache[blocks]).float().permute(0, 2, 1, 3, 4).reshape(-1, kv_heads, width, dim)
        inside = positions < lens[:, None]  # beyond it memory may hold anything, NaN too
        values = torch.where(inside[:, None, :, None], values, 0.0).reshape(-1, width, dim)
        hidden = (positions > last_position[..., None]) | ~inside[:, None]
        hidden = hidden[:, None, :, None].expand(-1, kv_heads, -1, group, -1)
        hidden = hidden.reshape(*query.shape[:2], width)
        scores = torch.bmm(query, keys).masked_fill(hidden, -torch.inf)
        new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
        shrink, weights = torch.exp(top - new_top), torch.exp(scores - new_top)
        total = total * shrink + weights.sum(-1, keepdim=True)
        mixed = mixed * shrink + torch.bmm(weights, values)
        top = new_top
    mixed = (mixed / total).view(num_tiles, kv_heads, QUERY_TILE, group, dim)
    return mixed.transpose(1, 2)[tile_of_row, row_in_tile].flatten(1, 2).to(q.dtype)


def cache_sizes(k_cache: Tensor, v_cache: Tensor) -> tuple[int, int, int]:
    """KV heads, head dimension and block size of a cache: see ops for its order."""
    return k_cache.shape[1], v_cache.shape[3], k_cache.shape[3]


def in_order_k(blocks: Tensor) -> Tensor:
    """K as ``[..., dim, block_size]``, from blocks of K ``[..., dim / 2, block_size, 2]`` or as they are.

    Any number of leading axes; those of pairs are told by their last axis, whose size no block has.
    """
    if blocks.shape[-1] != 2:
        return blocks
    return blocks.transpose(-1, -2).flatten(-3, -2)


def in_order_v(blocks: Tensor) -> Tensor:
    """V as ``[..., block_size, dim]``, from blocks of V ``[..., block_size / 2, dim, 2]`` or as they are."""
    if blocks.shape[-1] != 2:
        return blocks
    return blocks.transpose(-1, -2).flatten(-3, -2)


def write_cache(k_cache: Tensor, v_cache: Tensor, slots: Tensor, k: Tensor, v: Tensor) -> None:
    """Put ``k`` and ``v`` ``[num_tokens, kv_heads, dim]`` into ``slots`` ``[num_tokens]`` (block * size + offset)."""
    _, _, block_size = cache_sizes(k_cache, v_cache)
    blocks, offsets = slots // block_size, slots % block_size
    k, v = k.to(k_cache.dtype).contiguous(), v.to(v_cache.dtype)
    if k_cache.ndim == PAIRED:
        k_cache[blocks, :, :, offsets] = k.view(*k.shape[:-1], -1, 2)
        v_cache[blocks, :, offsets // 2, :, offsets % 2] = v
    else:
        k_cache[blocks, :, :, offsets] = k
        v_cache[blocks, :, offsets] = v


def pack_linear(weight: Tensor) -> Tensor:
    """See ops.pack_linear."""
    outputs, size = weight.shape
    padded = functional.pad(weight, (0, size % 2, 0, -outputs % LINEAR_TILE))
    pairs = padded.view(-1, LINEAR_TILE, padded.shape[1] // 2, 2)
    return pairs.transpose(1, 2).contiguous()


def linear(x: Tensor, packed: Tensor, outputs: int, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """See ops.linear. Unlike the other twins it computes a row in an order that may depend on their number."""
    weight = packed.transpose(1, 2).flatten(2).flatten(0, 1)[:outputs, : x.shape[1]]
    result = x.float() @ weight.float().T
    return (result if bias is None else result + bias.float()).to(dtype)


def quantize_rows(x: Tensor, group: int) -> QuantizedRows:
    """See ops.quantize_rows."""
    num_rows, size = x.shape
    padded = size + -size % FOUR
    width = min(group, padded)  # of what is quantized together
    grouped = functional.pad(x.float(), (0, -size % width)).view(num_rows, -(-padded // width), width)
    whole, scales = _quantize(grouped)
    numbers = whole.flatten(1)[:, :padded].to(torch.int8)
    return QuantizedRows(numbers.contiguous(), scales, (-INT8_ZERO * whole.sum(-1)).int(), group)


def pack_linear_int8(weight: Tensor) -> Tensor:
    """See ops.pack_linear_int8."""
    outputs, size = weight.shape
    whole, scales = _quantize(functional.pad(weight.float(), (0, -size % FOUR, 0, -outputs % LINEAR_TILE)))
    fours = (whole + INT8_ZERO).to(torch.uint8).view(-1, LINEAR_TILE, whole.shape[1] // FOUR, FOUR).transpose(1, 2)
    return torch.cat((fours, scales.view(torch.uint8).view(-1, 1, LINEAR_TILE, FOUR)), dim=1)


def linear_int8(rows: QuantizedRows, packed: Tensor, outputs: int, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """See ops.linear_int8. A group's sums are whole numbers far below 2^53: exact in float64, in any order."""
    weight = packed[:, :-1].transpose(1, 2).flatten(2).flatten(0, 1).double() - INT8_ZERO
    total = torch.zeros(len(rows.numbers), len(weight), device=weight.device)
    for group, start in enumerate(range(0, weight.shape[1], rows.group)):
        end = start + rows.group
        sums = rows.numbers[:, start:end].double() @ weight[:, start:end].T
        total += sums.float() * rows.scales[:, group, None]
    result = (total * packed[:, -1].flatten().view(torch.float32))[:, :outputs]
    return (result if bias is None else result + bias.float()).to(dtype)


def _quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers of ``[..., size]`` as floats, and the scale of each ``size``: NaN, if not all are finite."""
    top = x.abs().amax(-1)
    largest = torch.full_like(top, INT8_MAX)  # a number divided by a tensor is rounded twice
    inverse = torch.where(top > LEAST_TOP, largest / top, 0.0)
    whole = (x * inverse[..., None]).round()
    return whole.nan_to_num(0.0, 0.0, 0.0), top / INT8_MAX + (top - top)


def _query_tiles(query_starts: Tensor, context_lens: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Place query rows in tiles: each row's tile and place there; each tile's sequence and first position."""
    counts = (query_starts[1:] - query_starts[:-1]).long()
    seqs = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    rows = torch.arange(len(seqs), device=counts.device)
    first_positions = context_lens.long() - counts - query_starts[:-1].long()
    positions = first_positions[seqs] + rows
    keys = torch.stack((seqs, positions // QUERY_TILE), dim=1)
    tiles, tile_of_row = torch.unique_consecutive(keys, dim=0, return_inverse=True)
    return tile_of_row, positions % QUERY_TILE, tiles[:, 0], tiles[:, 1] * QUERY_TILE


def _normalize(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.float()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (i, i + dim / 2) of the last axis."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
