"""One of the ids of a row that filters keep, by their weights."""

from __future__ import annotations

import triton
import triton.language as tl

from kvferry_kernels.gpu.logits_row import read_either
from kvferry_kernels.gpu.ranking import key_of, share_of, weight_of


@triton.jit
def _kept(logits, peak, scale, last, ties, seen, least):
    """Weights, 0 for what isn't kept; and ``seen`` with the ids added that have the key ``last``."""
    weights, keys = weight_of(logits, peak, scale), key_of(logits)
    equal = (keys == last).to(tl.int32)
    place = seen + tl.cumsum(equal, axis=0)
    is_kept = ((keys > last) | ((equal != 0) & (place <= ties))) & (weights >= least)
    return tl.where(is_kept, weights, 0), seen + tl.sum(equal, axis=0)


@triton.jit
def draw(
    logits_ptr,
    allowed_ptr,
    is_narrowed,
    list_ptr,
    is_listed,
    count,
    peak,
    scale,
    last,
    ties,
    least,
    number,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
):
    """The first of the kept ids at which the sum of weights, in the order of ids, reaches ``number`` of their total.

    Kept is what is above the key ``last``, and of the ids that have it the first ``ties``, if they weigh ``least``.
    """
    total = tl.full([], 0, tl.int64)
    seen = tl.full([], 0, tl.int32)
    for start in range(0, count, TILE):
        _, logits = read_either(logits_ptr, allowed_ptr, is_narrowed, list_ptr, is_listed, start, count, VOCAB, TILE)
        weights, seen = _kept(logits, peak, scale, last, ties, seen, least)
        total += tl.sum(weights, axis=0)
    need = share_of(number, total)
    before = tl.full([], 0, tl.int64)
    seen = tl.full([], 0, tl.int32)
    token = tl.full([], -1, tl.int32)
    start = tl.full([], 0, tl.int32)
    while (token < 0) & (start < count):
        ids, logits = read_either(logits_ptr, allowed_ptr, is_narrowed, list_ptr, is_listed, start, count, VOCAB, TILE)
        weights, seen = _kept(logits, peak, scale, last, ties, seen, least)
        after = before + tl.sum(weights, axis=0)
        if after >= need:
            reached = (before + tl.cumsum(weights, axis=0) >= need) & (weights > 0)
            token = tl.min(tl.where(reached, ids, VOCAB), axis=0)
        before = after
        start += TILE
    return token
