"""Attention of one new token a sequence over its paged context.

Each program computes one split of one KV head, for all its query heads, with an online softmax (Dao 2023,
FlashAttention-2) over blocks found by a table (Kwon et al. 2023, PagedAttention); ``splits`` puts a row's together.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvferry_kernels.gpu import paged_cache, splits
from kvferry_kernels.gpu.attention import Attention, check_batch
from kvferry_kernels.gpu.attention_shape import TYPES, AttentionShape, shipped_shapes
from kvferry_kernels.gpu.numbers import LOG2_E, capped, product, widen
from kvferry_kernels.gpu.paged_cache import PagedCache
from kvferry_kernels.gpu.shipped import ARCHITECTURES, FUSED, Shipped

WARPS, STAGES = 4, 5
"""Of five stages the compiler makes two buffers: block numbers come first, then a tile of K and V while another is
computed. Three such programs fit a multiprocessor of an H100, which has some 96 KiB of loads in flight then."""

MIN_ROWS = 16
"""Rows of the smallest product that tensor cores compute."""

INT8 = tl.constexpr(paged_cache.INT8)
PLAIN = tl.constexpr(paged_cache.PLAIN)


@triton.jit(do_not_specialize=["table_width"])
def split_kernel(
    q,
    k_cache,
    v_cache,
    k_scales,
    v_scales,
    tables,
    context_lens,
    parts,
    tops,
    totals,
    scale,
    table_width,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    KIND: tl.constexpr,
):
    """One split of one sequence and KV head: weighted sum of V, largest score and sum of weights of each query head."""
    head, split, seq = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    length = tl.load(context_lens + seq)
    begin, end = split * SPLIT, tl.minimum(split * SPLIT + SPLIT, length)
    if WINDOW > 0:
        begin = tl.maximum(begin, length - WINDOW)
    if begin >= end:
        return
    rows, dims = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    query_rows = (seq * KV_HEADS + head) * GROUP + rows
    is_query, is_dim = rows < GROUP, dims < DIM
    query = tl.load(q + query_rows[:, None] * DIM + dims, mask=is_query[:, None] & is_dim, other=0.0)
    factor = scale * LOG2_E
    if KIND != PLAIN and KIND != INT8:
        factor *= tl.load(k_scales + head)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH], tl.float32)
    table = tables + seq * table_width
    for start in range(begin // TILE * TILE, end, TILE):
        tokens = start + tl.arange(0, TILE)
        inside = (tokens >= begin) & (tokens < end)  # behind the end tables and memory may hold anything
        blocks = tl.load(table + tokens // BLOCK, mask=inside, other=0).to(tl.int64)
        places = (blocks * KV_HEADS + head) * BLOCK + tokens % BLOCK
        wanted = inside[:, None] & is_dim
        keys = widen(tl.load(k_cache + places[:, None] * DIM + dims, mask=wanted, other=0.0), query.dtype, KIND)
        scores = product(query, tl.trans(keys), tl.zeros([ROWS, TILE], tl.float32)) * factor
        if KIND == INT8:
            scores *= tl.load(k_scales + places, mask=inside, other=0.0)
        if CAP > 0:
            scores = capped(scores, CAP)
        scores = tl.where(inside, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        shrink, weights = tl.exp2(top - new_top), tl.exp2(scores - new_top[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        if KIND == INT8:
            weights *= tl.load(v_scales + places, mask=inside, other=0.0)
        values = widen(tl.load(v_cache + places[:, None] * DIM + dims, mask=wanted, other=0.0), query.dtype, KIND)
        mixed = product(weights.to(query.dtype), values, mixed * shrink[:, None])
        top = new_top
    if KIND != PLAIN and KIND != INT8:
        mixed *= tl.load(v_scales + head)
    at = query_rows * tl.num_programs(1) + split
    tl.store(parts + at[:, None] * DIM + dims, mixed, mask=is_query[:, None] & is_dim)
    tl.store(tops + at, top, mask=is_query)
    tl.store(totals + at, total, mask=is_query)


def paged_decode(
    q: Tensor,
    cache: PagedCache,
    block_tables: Tensor,
    context_lens: Tensor,
    attention: Attention,
    max_context_len: int | None = None,
) -> Tensor:
    """Attend with the last token of each sequence: a tensor of q's shape and dtype.

    ``q`` ``[num_seqs, heads, head_dim]``, bfloat16, float16 or float32, heads a multiple of the cache's, up to 64
    times as many; ``block_tables`` int32 ``[num_seqs, max_blocks]``; ``context_lens`` int32 ``[num_seqs]``, the new
    token included: its K and V are in the cache. An empty context gives zeros. What lies behind a context's end, in
    its table or block, is not looked at. All contiguous, on one device. ``max_context_len``: no context is longer;
    what the tables have room for, if left out. It costs a launch of empty programs, and memory for partial results: 4
    (head_dim + 2) bytes for each head and 512 tokens of it.

    Products are of numbers of q's dtype, sums float32, one rounding at the end. A row's bits depend on its own query
    and context alone, not on batch, block places or ``max_context_len``. ValueError for shapes, dtypes or devices
    that don't fit.
    """
    check_batch(q, cache, block_tables, context_lens, attention)
    num_seqs = len(q)
    if num_seqs != len(context_lens):
        raise ValueError(f"{num_seqs} queries with {len(context_lens)} contexts")
    room = block_tables.shape[1] * cache.block_size
    partial = splits.empty_splits(q, room if max_context_len is None else min(room, max_context_len))
    num_splits = partial.tops.shape[2]
    shape, out = AttentionShape.of(q, cache, attention), torch.empty_like(q)
    if num_seqs == 0:
        return out
    if num_splits:
        split_kernel[cache.kv_heads, num_splits, num_seqs](
            q,
            *cache.stored,
            cache.k_scales,
            cache.v_scales,
            block_tables,
            context_lens,
            *partial,
            attention.scale,
            block_tables.shape[1],
            **_constants(shape),
            num_warps=WARPS,
            num_stages=STAGES,
            **FUSED,
        )
    splits.merge(partial, context_lens, attention, shape, out)
    return out


def _constants(shape: AttentionShape) -> dict[str, object]:
    rows = max(MIN_ROWS, triton.next_power_of_2(shape.group))
    return {**shape.constants(), "ROWS": rows, "SPLIT": splits.SPLIT}


def shipped() -> list[Shipped]:
    """For each shape that we ship."""
    types = {"context_lens": "*i32", "parts": "*fp32", "tops": "*fp32", "totals": "*fp32", "scale": "fp32"}
    return [
        Shipped(
            f"decode, {shape}",
            split_kernel,
            {**types, **shape.cache_types(), "q": TYPES[shape.dtype], "table_width": "i32"},
            _constants(shape),
            WARPS,
            STAGES,
            (architecture,),
        )
        for architecture in ARCHITECTURES
        for shape in shipped_shapes(architecture)
    ]
