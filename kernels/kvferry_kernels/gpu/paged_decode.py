"""Attention of one new token a sequence over its paged context.

Two kernels, as in Flash-Decoding (Dao et al. 2023): contexts are cut into splits, each program computes one split of
one KV head for all its query heads with an online softmax (Dao 2023, FlashAttention-2) over blocks found by a table
(Kwon et al. 2023, PagedAttention), and a second kernel puts a row's splits together.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvferry_kernels.gpu import paged_cache
from kvferry_kernels.gpu.attention import Attention, check_batch
from kvferry_kernels.gpu.attention_shape import TYPES, AttentionShape, shipped_shapes
from kvferry_kernels.gpu.numbers import LOG2_E, capped, product, widen
from kvferry_kernels.gpu.paged_cache import PagedCache
from kvferry_kernels.gpu.shipped import ARCHITECTURES, Shipped

SPLIT = 512
"""Tokens of a split. Fixed, so that a row's sums don't depend on its batch; small enough for 16 sequences of 4,096
tokens and 8 heads to fill a large card eight times, large enough for partial results to be 2 % of what is read."""

SPLIT_WARPS, SPLIT_STAGES = 4, 5
"""Of five stages the compiler makes two buffers: block numbers come first, then a tile of K and V while another is
computed. Three such programs fit a multiprocessor of an H100, which has some 96 KiB of loads in flight then."""

MERGE = 16
"""Splits put together at once."""

MERGE_WARPS = 4

MIN_ROWS = 16
"""Rows of the smallest product that tensor cores compute."""

INT8 = tl.constexpr(paged_cache.INT8)
PLAIN = tl.constexpr(paged_cache.PLAIN)


@triton.jit
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


@triton.jit
def merge_kernel(
    parts,
    tops,
    totals,
    context_lens,
    sinks,
    out,
    num_splits,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLIT: tl.constexpr,
    MERGE: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
):
    """Put the splits of one row together, in their order."""
    head, seq = tl.program_id(0), tl.program_id(1).to(tl.int64)
    length = tl.load(context_lens + seq)
    first, last = 0, tl.cdiv(length, SPLIT)
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0) // SPLIT
    dims, row = tl.arange(0, WIDTH), seq * HEADS + head
    is_dim = dims < DIM
    top = tl.load(sinks + head) * LOG2_E if SINKS else float("-inf")
    total = 1.0 if SINKS else 0.0
    mixed = tl.zeros([WIDTH], tl.float32)
    for start in range(first // MERGE * MERGE, last, MERGE):
        splits = start + tl.arange(0, MERGE)
        inside = (splits >= first) & (splits < last)
        at = row * num_splits + splits
        split_tops = tl.load(tops + at, mask=inside, other=float("-inf"))
        new_top = tl.maximum(top, tl.max(split_tops, axis=0))
        shrink, weights = tl.exp2(top - new_top), tl.exp2(split_tops - new_top)
        total = total * shrink + tl.sum(weights * tl.load(totals + at, mask=inside, other=0.0), axis=0)
        part = tl.load(parts + at[:, None] * DIM + dims, mask=inside[:, None] & is_dim, other=0.0)
        mixed = mixed * shrink + tl.sum(weights[:, None] * part, axis=0)
        top = new_top
    mixed /= tl.where(length > 0, total, 1.0)  # an empty context gives zeros
    tl.store(out + row * DIM + dims, mixed.to(out.dtype.element_ty), mask=is_dim)


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
    num_seqs, heads, dim = q.shape
    if num_seqs != len(context_lens):
        raise ValueError(f"{num_seqs} queries with {len(context_lens)} contexts")
    room = block_tables.shape[1] * cache.block_size
    num_splits = triton.cdiv(room if max_context_len is None else min(room, max_context_len), SPLIT)
    shape = AttentionShape.of(q, cache, attention)
    out = torch.empty_like(q)
    if num_seqs == 0:
        return out
    parts = q.new_empty(num_seqs, heads, num_splits, dim, dtype=torch.float32)
    tops, totals = q.new_empty(2, num_seqs, heads, num_splits, dtype=torch.float32)
    if num_splits:
        split_kernel[cache.kv_heads, num_splits, num_seqs](
            q,
            *cache.stored,
            cache.k_scales,
            cache.v_scales,
            block_tables,
            context_lens,
            parts,
            tops,
            totals,
            attention.scale,
            block_tables.shape[1],
            **_split_constants(shape),
            num_warps=SPLIT_WARPS,
            num_stages=SPLIT_STAGES,
        )
    merge_kernel[heads, num_seqs](
        parts,
        tops,
        totals,
        context_lens,
        attention.sinks,
        out,
        num_splits,
        **_merge_constants(shape),
        num_warps=MERGE_WARPS,
        num_stages=1,
    )
    return out


def _split_constants(shape: AttentionShape) -> dict[str, object]:
    rows = max(MIN_ROWS, triton.next_power_of_2(shape.group))
    return {**shape.constants(), "ROWS": rows, "SPLIT": SPLIT}


def _merge_constants(shape: AttentionShape) -> dict[str, object]:
    return {
        "HEADS": shape.heads,
        "DIM": shape.head_dim,
        "WIDTH": shape.width,
        "SPLIT": SPLIT,
        "MERGE": MERGE,
        "WINDOW": shape.window,
        "SINKS": shape.sinks,
    }


def shipped() -> list[Shipped]:
    """Both kernels for each shape that we ship."""
    parts = {"context_lens": "*i32", "parts": "*fp32", "tops": "*fp32", "totals": "*fp32"}
    found = []
    for architecture in ARCHITECTURES:
        for shape in shipped_shapes(architecture):
            q = TYPES[shape.dtype]
            split_types = {**parts, **shape.cache_types(), "q": q, "scale": "fp32", "table_width": "i32"}
            merge_types = {**parts, "sinks": "*fp32", "out": q, "num_splits": "i32"}
            split = _split_constants(shape)
            merge = _merge_constants(shape)
            only = (architecture,)
            found.append(Shipped(f"decode, {shape}", split_kernel, split_types, split, SPLIT_WARPS, SPLIT_STAGES, only))
            if shape.stored == shape.dtype:  # it doesn't see the cache
                found.append(Shipped(f"merge, {shape}", merge_kernel, merge_types, merge, MERGE_WARPS, 1, only))
    return found
