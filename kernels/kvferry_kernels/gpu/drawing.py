"""One of the ids of a row that filters keep, by their weights."""

from __future__ import annotations

import triton
import triton.language as tl

from kvferry_kernels.gpu.logits_row import read_either
from kvferry_kernels.gpu.ranking import key_of, weight_of


@triton.jit
def _kept(logits, peak, temperature, last, ties, seen, min_p):
    """Weights, 0 for what isn't kept; and ``seen`` with the ids added that have the key ``last``."""
    weights, keys = weight_of(logits, peak, temperature), key_of(logits)
    equal = (keys == last).to(tl.int32)
    place = seen + tl.cumsum(equal, axis=0)
    is_kept = ((keys > last) | ((equal != 0) & (place <= ties))) & (weights >= min_p)
    return tl.where(is_kept, weights, 0.0), seen + tl.sum(equal, axis=0)


@triton.jit
def draw(
    logits_ptr,
    allowed_ptr,
    is_narrowed,
    list_ptr,
    is_listed,
    count,
    peak,
    temperature,
    last,
    ties,
    min_p,
    number,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
):
    """The first of the kept ids at which the sum of weights, in the order of ids, reaches ``number`` of their total.

    Kept is what is above the key ``last``, and of the ids that have it the first ``ties``, if they weigh ``min_p``.
    """
    total = tl.full([], 0.0, tl.float64)
    seen = tl.full([], 0, tl.int32)
    for start in range(0, count, TILE):
        _, logits = read_either(logits_ptr, allowed_ptr, is_narrowed, list_ptr, is_listed, start, count, VOCAB, TILE)
        weights, seen = _kept(logits, peak, temperature, last, ties, seen, min_p)
        total += tl.sum(weights, axis=0).to(tl.float64)
    target = number * total
    before = tl.full([], 0.0, tl.float64)
    seen = tl.full([], 0, tl.int32)
    token = tl.full([], -1, tl.int32)
    latest = tl.full([], -1, tl.int32)
    start = tl.full([], 0, tl.int32)
    while (token < 0) & (start < count):
        ids, logits = read_either(logits_ptr, allowed_ptr, is_narrowed, list_ptr, is_listed, start, count, VOCAB, TILE)
        weights, seen = _kept(logits, peak, temperature, last, ties, seen, min_p)
        after = before + tl.sum(weights, axis=0).to(tl.float64)
        latest = tl.maximum(latest, tl.max(tl.where(weights > 0.0, ids, -1), axis=0))
        if after >= target:
            reached = (before + tl.cumsum(weights, axis=0).to(tl.float64) >= target) & (weights > 0.0)
            token = tl.minimum(tl.min(tl.where(reached, ids, VOCAB), axis=0), latest)
        before = after
        start += TILE
    # Rounding may leave the running sums short of their total: then it is the last one.
    return tl.where(token < 0, latest, token)
