"""One row of logits, read in tiles by one program.

Everywhere ``logits_ptr`` is the row's first logit (float32); ``allowed_ptr`` its first word (int32) of bits that say
which ids are allowed, unread unless ``is_narrowed`` is 1 (else 0); ``list_ptr`` room for as many ids (int32).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvferry_kernels import sampling
from kvferry_kernels.gpu.ranking import key_of, weight_of

NONE_LEFT, NOT_FINITE = tl.constexpr(sampling.NONE_LEFT), tl.constexpr(sampling.NOT_FINITE)


@triton.jit
def _allowed(ids, logits, allowed_ptr, is_narrowed, VOCAB: tl.constexpr):
    """Minus infinity where an id isn't allowed."""
    words = tl.load(allowed_ptr + ids // 32, mask=ids < VOCAB * is_narrowed, other=-1)
    return tl.where(((words >> (ids % 32)) & 1) != 0, logits, float("-inf"))


@triton.jit
def read(logits_ptr, allowed_ptr, is_narrowed, start, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """Ids from ``start`` on and their logits: minus infinity beyond the last, and where an id isn't allowed."""
    ids = start + tl.arange(0, TILE)
    logits = tl.load(logits_ptr + ids, mask=ids < VOCAB, other=float("-inf"))
    return ids, _allowed(ids, logits, allowed_ptr, is_narrowed, VOCAB)


@triton.jit
def likeliest(logits_ptr, allowed_ptr, is_narrowed, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """The largest allowed logit, the first id that has it, and the lanes' largest.

    Instead of an id NOT_FINITE if there is a NaN or the largest of all isn't finite, allowed or not; NONE_LEFT if no
    allowed one is above minus infinity.
    """
    tops = tl.full([TILE], float("-inf"), tl.float32)
    top_ids = tl.full([TILE], VOCAB, tl.int32)
    highest = tl.full([TILE], float("-inf"), tl.float32)
    odd = tl.zeros([TILE], tl.int32)
    for start in range(0, VOCAB, TILE):
        ids = start + tl.arange(0, TILE)
        every = tl.load(logits_ptr + ids, mask=ids < VOCAB, other=float("-inf"))
        odd |= (every != every).to(tl.int32)
        highest = tl.where(every > highest, every, highest)
        logits = _allowed(ids, every, allowed_ptr, is_narrowed, VOCAB)
        is_larger = logits > tops
        tops = tl.where(is_larger, logits, tops)
        top_ids = tl.where(is_larger, ids, top_ids)
    peak = tl.max(tops, axis=0)
    best = tl.min(tl.where(tops == peak, top_ids, VOCAB), axis=0)
    is_finite = (tl.max(odd, axis=0) == 0) & (tl.abs(tl.max(highest, axis=0)) < float("inf"))
    best = tl.where(peak == float("-inf"), NONE_LEFT, best)
    return peak, tl.where(is_finite, best, NOT_FINITE), tops


@triton.jit
def total_weight(logits_ptr, allowed_ptr, is_narrowed, peak, scale, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """The weight of all."""
    total = tl.full([], 0, tl.int64)
    for start in range(0, VOCAB, TILE):
        _, logits = read(logits_ptr, allowed_ptr, is_narrowed, start, VOCAB, TILE)
        total += tl.sum(weight_of(logits, peak, scale), axis=0)
    return total


@triton.jit
def list_ids(
    list_ptr,
    logits_ptr,
    allowed_ptr,
    is_narrowed,
    peak,
    scale,
    floor,
    lightest,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write the ids whose keys reach ``floor`` and whose weights reach ``lightest``; their number."""
    count = tl.full([], 0, tl.int32)
    for start in range(0, VOCAB, TILE):
        ids, logits = read(logits_ptr, allowed_ptr, is_narrowed, start, VOCAB, TILE)
        ones = ((key_of(logits) >= floor) & (weight_of(logits, peak, scale) >= lightest)).to(tl.int32)
        tl.store(list_ptr + count + tl.cumsum(ones, axis=0) - ones, ids, mask=ones != 0)
        count += tl.sum(ones, axis=0)
    tl.debug_barrier()  # other threads of this program read what was written
    return count


@triton.jit
def read_either(
    logits_ptr, allowed_ptr, is_narrowed, list_ptr, is_listed, start, count, VOCAB: tl.constexpr, TILE: tl.constexpr
):
    """``read``, of the ids of the list if there is one."""
    if is_listed:
        places = start + tl.arange(0, TILE)
        ids = tl.load(list_ptr + places, mask=places < count, other=0)
        logits = tl.load(logits_ptr + ids, mask=places < count, other=float("-inf"))
    else:
        ids, logits = read(logits_ptr, allowed_ptr, is_narrowed, start, VOCAB, TILE)
    return ids, logits
