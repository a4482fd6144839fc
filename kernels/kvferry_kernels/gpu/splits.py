"""Contexts are cut into splits, whose partial attentions one kernel puts together (Dao et al. 2023, Flash-Decoding)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvferry_kernels.gpu.attention import Attention
from kvferry_kernels.gpu.attention_shape import TYPES, AttentionShape, shipped_shapes
from kvferry_kernels.gpu.numbers import LOG2_E
from kvferry_kernels.gpu.shipped import ARCHITECTURES, FUSED, Shipped

SPLIT = 512
"""Tokens of a split. Fixed, so that a row's sums don't depend on its batch; small enough for four sequences of 4,096
tokens and 8 heads to keep a large card busy, large enough for partial results to be 2 % of what is read."""

MERGE = 16
"""Splits put together at once."""

WARPS = 4


class Splits(NamedTuple):
    """Partial attentions, float32, of which only those of splits with tokens are ever written.

    ``parts`` ``[num_seqs, heads, num_splits, head_dim]``: sums of V, weighted by two to the power of scores less their
    largest; ``tops``, ``totals`` ``[num_seqs, heads, num_splits]``: that largest score, and the sum of weights.
    """

    parts: Tensor
    tops: Tensor
    totals: Tensor


@triton.jit(do_not_specialize=["num_splits"])
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


def empty_splits(q: Tensor, max_context_len: int) -> Splits:
    """Room for the splits of ``q`` ``[num_seqs, heads, head_dim]`` over contexts of a length at most."""
    num_seqs, heads, dim = q.shape
    num_splits = triton.cdiv(max_context_len, SPLIT)
    parts = q.new_empty(num_seqs, heads, num_splits, dim, dtype=torch.float32)
    return Splits(parts, *q.new_empty(2, num_seqs, heads, num_splits, dtype=parts.dtype))


def merge(splits: Splits, context_lens: Tensor, attention: Attention, shape: AttentionShape, out: Tensor) -> None:
    """Write rows of attention, ``out`` ``[num_seqs, heads, head_dim]``; an empty context gives zeros."""
    merge_kernel[shape.heads, len(out)](
        *splits,
        context_lens,
        attention.sinks,
        out,
        splits.tops.shape[2],
        **_constants(shape),
        num_warps=WARPS,
        num_stages=1,
        **FUSED,
    )


def _constants(shape: AttentionShape) -> dict[str, object]:
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
    """For each shape that we ship; it doesn't see how the cache is stored."""
    types = {"context_lens": "*i32", "parts": "*fp32", "tops": "*fp32", "totals": "*fp32", "sinks": "*fp32"}
    return [
        Shipped(
            f"merge, {shape}",
            merge_kernel,
            {**types, "out": TYPES[shape.dtype], "num_splits": "i32"},
            _constants(shape),
            WARPS,
            1,
            (architecture,),
        )
        for architecture in ARCHITECTURES
        for shape in shipped_shapes(architecture)
        if shape.stored == shape.dtype
    ]
