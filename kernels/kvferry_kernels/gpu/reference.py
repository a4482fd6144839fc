"""What is right: each operation in plain torch, one sequence after another, in float64.

Unlike the kernels these wait for the device, and are slow.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kvferry_kernels.gpu.attention import Attention
from kvferry_kernels.gpu.paged_cache import PagedCache

FP8_MAX, INT8_MAX = 448.0, 127.0
LEAST_TOP = 1e-30
"""Numbers that share a scale and of which none is as large count as 0."""


def paged_prefill(
    q: Tensor,
    cache: PagedCache,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    attention: Attention,
) -> Tensor:
    """See paged_prefill.paged_prefill; float64."""
    out = torch.zeros_like(q, dtype=torch.float64)
    for seq, length in enumerate(context_lens.tolist()):
        first, last = query_starts[seq : seq + 2].tolist()
        if length > 0:
            k, v = context(cache, block_tables[seq], length)
            out[first:last] = attend(q[first:last].double(), k, v, attention)
    return out


def paged_decode(
    q: Tensor, cache: PagedCache, block_tables: Tensor, context_lens: Tensor, attention: Attention
) -> Tensor:
    """See paged_decode.paged_decode; float64."""
    starts = torch.arange(len(q) + 1, device=q.device)
    return paged_prefill(q, cache, block_tables, starts, context_lens, attention)


def context(cache: PagedCache, table: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """K and V of a sequence in its order, float64 ``[length, kv_heads, head_dim]``."""
    blocks = table[: -(-length // cache.block_size)].long()
    halves = ((cache.k, cache.k_scales), (cache.v, cache.v_scales))
    k, v = (numbers(half, scales)[blocks].transpose(1, 2).flatten(0, 1)[:length] for half, scales in halves)
    return k, v


def numbers(half: Tensor, scales: Tensor | None) -> Tensor:
    """What a cache of K or of V stands for, in float64."""
    if scales is None:
        return half.double()
    scales = scales[..., None] if half.dtype == torch.int8 else scales[None, :, None, None]
    return half.double() * scales.double()


def attend(q: Tensor, k: Tensor, v: Tensor, attention: Attention) -> Tensor:
    """Attention of a context's last ``[num_queries, heads, head_dim]``; K, V ``[length, kv_heads, head_dim]``."""
    num_queries, heads, _ = q.shape
    length, kv_heads, _ = k.shape
    k, v = (half.repeat_interleave(heads // kv_heads, dim=1) for half in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * attention.scale
    if attention.soft_cap:
        scores = attention.soft_cap * torch.tanh(scores / attention.soft_cap)
    positions = torch.arange(length, device=q.device)
    behind = positions[length - num_queries :, None] - positions
    seen = behind >= 0 if attention.window == 0 else (behind >= 0) & (behind < attention.window)
    scores = scores.masked_fill(~seen, -torch.inf)
    if attention.sinks is not None:
        sinks = attention.sinks.to(q.dtype)[:, None, None].expand(-1, num_queries, 1)
        scores = torch.cat((scores, sinks), dim=-1)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., :length], v)


def write_cache(k: Tensor, v: Tensor, cache: PagedCache, slots: Tensor) -> None:
    """See cache.write_cache."""
    halves = ((k, cache.k, cache.k_scales), (v, cache.v, cache.v_scales))
    for token, slot in enumerate(slots.tolist()):
        block, offset = divmod(slot, cache.block_size)
        if not 0 <= block < cache.num_blocks:
            continue
        for new, half, scales in halves:
            if scales is None:
                half[block, :, offset] = new[token]
            elif half.dtype == torch.int8:
                half[block, :, offset], scales[block, :, offset] = to_int8(new[token].float())
            else:
                scaled = new[token].float() / scales[:, None]
                half[block, :, offset] = scaled.clamp(-FP8_MAX, FP8_MAX).to(half.dtype)


def to_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Integers of float32 rows ``[rows, size]``, and each row's scale: NaN, if not all of its numbers are finite."""
    all_finite, x = x.isfinite().all(1), x.nan_to_num(0.0, 0.0, 0.0)
    top = x.abs().amax(1)
    largest = torch.full_like(top, INT8_MAX)  # a number divided by a tensor is rounded twice
    inverse = torch.where(top > LEAST_TOP, largest / top, 0.0)
    return (x * inverse[:, None]).round().to(torch.int8), torch.where(all_finite, top / largest, torch.nan)


def gather_blocks(planes: Sequence[Tensor], blocks: Tensor) -> Tensor:
    """See cache.gather_blocks; a new staging tensor."""
    parts = [plane.view(torch.uint8).flatten(1) for plane in planes]
    rows = [torch.cat([part[block] for part in parts]) for block in blocks.tolist()]
    return torch.stack(rows)
