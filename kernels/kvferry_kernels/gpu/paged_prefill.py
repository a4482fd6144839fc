"""Attention of chunks of new tokens, of any lengths, over their paged contexts.

FlashAttention-2 (Dao 2023) over blocks found by a table (Kwon et al. 2023, PagedAttention). A tile of queries holds
all query heads of one KV head at some positions, so K and V are read once for all of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvferry_kernels.gpu import card, paged_cache
from kvferry_kernels.gpu.attention import Attention, check_batch, check_flat
from kvferry_kernels.gpu.attention_shape import TILE, TYPES, AttentionShape, shipped_shapes
from kvferry_kernels.gpu.numbers import LOG2_E, capped, product, widen
from kvferry_kernels.gpu.paged_cache import PagedCache
from kvferry_kernels.gpu.query_tiles import spread, tile_rows
from kvferry_kernels.gpu.shipped import ARCHITECTURES, FUSED, Shipped

WARPS, STAGES = 8, 5

INT8 = tl.constexpr(paged_cache.INT8)
PLAIN = tl.constexpr(paged_cache.PLAIN)


@triton.jit
def sweep(
    begin,
    end,
    top,
    total,
    mixed,
    query,
    positions,
    head,
    table,
    k_cache,
    v_cache,
    k_scales,
    v_scales,
    factor,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    KIND: tl.constexpr,
    EDGE: tl.constexpr,
):
    """Take in the keys of [begin, end); on an EDGE some are after a query, or after the context and not looked at."""
    dims = tl.arange(0, query.shape[1])
    is_dim = dims[None, :] < DIM
    for start in range(begin, end, TILE):
        tokens = start + tl.arange(0, TILE)
        inside = (tokens < end) if EDGE else (tokens >= 0)
        blocks = tl.load(table + tokens // BLOCK, mask=inside, other=0).to(tl.int64)
        places = (blocks * KV_HEADS + head) * BLOCK + tokens % BLOCK
        wanted = inside[:, None] & is_dim
        keys = widen(tl.load(k_cache + places[:, None] * DIM + dims, mask=wanted, other=0.0), query.dtype, KIND)
        scores = product(query, tl.trans(keys), tl.zeros([query.shape[0], TILE], tl.float32)) * factor
        if KIND == INT8:
            scores *= tl.load(k_scales + places, mask=inside, other=0.0)
        if CAP > 0:
            scores = capped(scores, CAP)
        if EDGE:
            scores = tl.where(tokens <= positions[:, None], scores, float("-inf"))
        if WINDOW > 0:
            scores = tl.where(tokens > positions[:, None] - WINDOW, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        level = new_top
        if WINDOW > 0:  # a row may have seen nothing yet
            level = tl.where(new_top == float("-inf"), 0.0, new_top)
        shrink, weights = tl.exp2(top - level), tl.exp2(scores - level[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        if KIND == INT8:
            weights *= tl.load(v_scales + places, mask=inside, other=0.0)
        values = widen(tl.load(v_cache + places[:, None] * DIM + dims, mask=wanted, other=0.0), query.dtype, KIND)
        mixed = product(weights.to(query.dtype), values, mixed * shrink[:, None])
        top = new_top
    return top, total, mixed


@triton.jit(do_not_specialize=["table_width"])
def prefill_kernel(
    q,
    k_cache,
    v_cache,
    k_scales,
    v_scales,
    tables,
    query_starts,
    context_lens,
    tiles,
    sinks,
    out,
    scale,
    table_width,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    SPREAD: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    SINKS: tl.constexpr,
    KIND: tl.constexpr,
):
    """One tile of queries and one KV head; SPREAD is GROUP rounded up to a power of two."""
    head, tile = tl.program_id(0), tl.program_id(1)
    seq, first = tl.load(tiles + 2 * tile).to(tl.int64), tl.load(tiles + 2 * tile + 1)
    if seq < 0:
        return
    query_start, query_end = tl.load(query_starts + seq), tl.load(query_starts + seq + 1)
    length = tl.load(context_lens + seq)
    rows, dims = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    positions, member = first + rows // SPREAD, rows % SPREAD
    asked = positions - (length - (query_end - query_start))
    is_query = (asked >= 0) & (positions < length) & (member < GROUP)
    query_rows = ((query_start + asked).to(tl.int64) * KV_HEADS + head) * GROUP + member
    wanted = is_query[:, None] & (dims[None, :] < DIM)
    query = tl.load(q + query_rows[:, None] * DIM + dims, mask=wanted, other=0.0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if SINKS:
        top = tl.load(sinks + head * GROUP + member, mask=member < GROUP, other=0.0) * LOG2_E
        total += 1.0
    mixed = tl.zeros([ROWS, WIDTH], tl.float32)
    factor = scale * LOG2_E
    if KIND != PLAIN and KIND != INT8:
        factor *= tl.load(k_scales + head)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(first - WINDOW + 1, 0) // TILE * TILE
    edge = (first + 1) // TILE * TILE  # keys before it are before every query
    end = tl.minimum(first + ROWS // SPREAD, length)
    table = tables + seq * table_width
    top, total, mixed = sweep(
        begin, edge, top, total, mixed, query, positions, head, table, k_cache, v_cache, k_scales, v_scales, factor,
        KV_HEADS, DIM, BLOCK, TILE, WINDOW, CAP, KIND, False,
    )  # fmt: skip
    top, total, mixed = sweep(
        edge, end, top, total, mixed, query, positions, head, table, k_cache, v_cache, k_scales, v_scales, factor,
        KV_HEADS, DIM, BLOCK, TILE, WINDOW, CAP, KIND, True,
    )  # fmt: skip
    mixed /= tl.where(total > 0, total, 1.0)[:, None]  # rows that are no query may have seen nothing
    if KIND != PLAIN and KIND != INT8:
        mixed *= tl.load(v_scales + head)
    tl.store(out + query_rows[:, None] * DIM + dims, mixed.to(out.dtype.element_ty), mask=wanted)


def paged_prefill(
    q: Tensor,
    cache: PagedCache,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    tiles: Tensor,
    attention: Attention,
) -> Tensor:
    """Attend with the last tokens of each sequence, one or many: a tensor of q's shape and dtype.

    ``q`` ``[num_tokens, heads, head_dim]``, sequences one after another; ``query_starts`` int32 ``[num_seqs + 1]``,
    where each one's queries begin and the last one's end; ``context_lens`` int32 ``[num_seqs]``, queries included:
    their K and V are in the cache. ``tiles``: what ``query_tiles`` makes of the same lengths, on q's device; made
    once a batch, used by every layer. Others as in ``paged_decode``; what lies behind a context's end isn't looked
    at. What is returned for a row of q that is in no tile is left open.

    Products are of numbers of q's dtype, sums float32, one rounding at the end. A row's bits depend on its own query
    and context alone: not on chunk borders, batch or block places, for its position fixes which row of which tile it
    is, and keys are taken in tiles that start at fixed positions, in their order. They may differ from those of
    ``paged_decode``, which adds up in splits: who needs a decoded token's numbers to be those of a prompt's
    (``--batch-invariant``) uses this one for both. ValueError for shapes, dtypes or devices that don't fit.
    """
    check_batch(q, cache, block_tables, context_lens, attention)
    check_flat("query starts", query_starts, torch.int32, cache)
    check_flat("tiles", tiles, torch.int32, cache)
    if query_starts.shape != (len(context_lens) + 1,) or tiles.shape[1:] != (2,):
        raise ValueError(f"starts {list(query_starts.shape)}, tiles {list(tiles.shape)}, {len(context_lens)} contexts")
    out = torch.empty_like(q)
    if len(tiles):
        prefill_kernel[cache.kv_heads, len(tiles)](
            q,
            *cache.stored,
            cache.k_scales,
            cache.v_scales,
            block_tables,
            query_starts,
            context_lens,
            tiles,
            attention.sinks,
            out,
            attention.scale,
            block_tables.shape[1],
            **_constants(AttentionShape.of(q, cache, attention)),
            num_warps=WARPS,
            num_stages=STAGES,
            **FUSED,
        )
    return out


def _constants(shape: AttentionShape) -> dict[str, object]:
    tile = TILE
    if shape.capability < card.LARGE_PRODUCTS:  # keys pass through registers there, and so do the steps of a conversion
        tile = TILE // 4 if shape.kind == paged_cache.FP8_BITS else TILE // 2
    return {
        **shape.constants(tile),
        "SPREAD": spread(shape.group),
        "ROWS": tile_rows(shape.group, shape.dtype),
        "SINKS": shape.sinks,
    }


def shipped() -> list[Shipped]:
    """For each shape that we ship."""
    types = {"query_starts": "*i32", "context_lens": "*i32", "tiles": "*i32", "sinks": "*fp32", "scale": "fp32"}
    return [
        Shipped(
            f"prefill, {shape}",
            prefill_kernel,
            {**types, **shape.cache_types(), "q": TYPES[shape.dtype], "out": TYPES[shape.dtype], "table_width": "i32"},
            _constants(shape),
            WARPS,
            STAGES,
            (architecture,),
        )
        for architecture in ARCHITECTURES
        for shape in shipped_shapes(architecture)
    ]
