"""How far down a ranking of logits a filter goes, without a sort; and what ids weigh.

The logit of the last one that is kept is found by its bits, four at a time: of 16 keys that they may begin with, the
highest that enough logits reach (radix selection: Alabi et al., "Fast k-selection algorithms for graphics processing
units", 2012). For top-p it isn't logits that are counted, but their weights that are summed.

Weights are whole numbers of units, those of ``kvferry_kernels/sampling_reference.py`` to the last one: their sums are
exact in any order. Kernels that call this must be launched EXACT, for each operation on floats is rounded by itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvferry_kernels import sampling_reference

ONE = tl.constexpr(float(sampling_reference.ONE))
WEIGHTLESS = tl.constexpr(float(sampling_reference.WEIGHTLESS))
ROUNDER = tl.constexpr(float(sampling_reference.TO_INTEGER))
A, B, C, D, E, F, G = (tl.constexpr(float(factor)) for factor in sampling_reference.SERIES)
WHOLE = tl.constexpr(2.0**23)
"""A float32 from here on is whole; a smaller one is, once this was added to it and taken away."""


@triton.jit
def key_of(logits):
    """uint32 in the order of float32, above 0; one key for both zeros."""
    bits = tl.where(logits == 0.0, 0.0, logits).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, ~bits, bits ^ -0x80000000).to(tl.uint32, bitcast=True)


@triton.jit
def logit_of(key):
    """The logit of a key."""
    bits = key.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ -0x80000000, ~bits).to(tl.float32, bitcast=True)


@triton.jit
def weight_of(logits, peak, scale):
    """Units, int64; the largest logit, ``peak``, weighs ONE. ``scale``: log2(e) / temperature, as float32."""
    power = tl.maximum((logits - peak) * scale, WEIGHTLESS)
    shifted = power + ROUNDER
    rest = power - (shifted - ROUNDER)
    series = (((((A * rest + B) * rest + C) * rest + D) * rest + E) * rest + F) * rest + G
    # The exponent is what the shift leaves of the bits of ``shifted``.
    bits = series.to(tl.int32, bitcast=True) + (shifted.to(tl.int32, bitcast=True) << 23)
    units = bits.to(tl.float32, bitcast=True) * ONE
    return tl.where(units < WHOLE, (units + WHOLE) - WHOLE, units).to(tl.int64)


@triton.jit
def share_of(share, total):
    """Units of a share (float64) of a total: one at least, no more than all."""
    every = total.to(tl.float64)
    need = tl.ceil(share * every)
    return tl.where(need >= every, total, tl.maximum(need.to(tl.int64), 1))


@triton.jit
def _from_pivots(keys, measures, pivots):
    """Sums of the ``measures`` ``[n]`` whose keys reach each of ``pivots`` ``[16]``."""
    return tl.sum(tl.where(keys[None, :] >= pivots[:, None], measures[None, :], 0), axis=1)


@triton.jit
def floor_of_top_k(tops, top_k, CHUNK: tl.constexpr):
    """A key that at least ``top_k`` logits of a row reach, not many more; 0 if ``top_k`` is above ``CHUNK``.

    ``tops``: the largest logits of disjoint parts of the row, a multiple of ``CHUNK`` of them. Where large logits lie
    in different parts, as they mostly do, the k-th of the largest ones is about the k-th of all.
    """
    keys = key_of(tl.max(tl.reshape(tops, [tops.shape[0] // CHUNK, CHUNK]), axis=0))
    ones = tl.full([CHUNK], 1.0, tl.float32)  # of integers the compiler would count bits, by way of memory
    key = tl.full([], 0, tl.uint32)
    if top_k <= CHUNK:
        for step in range(8):
            shift = 28 - 4 * step
            counts = _from_pivots(keys, ones, key + (tl.arange(0, 16).to(tl.uint32) << shift))
            key += (tl.sum((counts >= top_k).to(tl.uint32)) - 1) << shift
    return key


@triton.jit
def _listed(logits_ptr, list_ptr, start, count, peak, scale, CHUNK: tl.constexpr):
    """Keys and weights of ids of the list, and 1 for each; beyond the last one there is no weight and 0."""
    places = start + tl.arange(0, CHUNK)
    ids = tl.load(list_ptr + places, mask=places < count, other=0)
    logits = tl.load(logits_ptr + ids, mask=places < count, other=float("-inf"))
    return key_of(logits), weight_of(logits, peak, scale), (places < count).to(tl.int64)


@triton.jit
def last_kept(logits_ptr, list_ptr, count, peak, scale, by_weight, target, CHUNK: tl.constexpr):
    """The highest key that ids of the list reach which are ``target`` together; 0 if all of them are less.

    What is meant is their weight or their number.
    """
    key = tl.full([], 0, tl.uint32)
    for step in range(8):
        shift = 28 - 4 * step
        pivots = key + (tl.arange(0, 16).to(tl.uint32) << shift)
        sums = tl.zeros([16], tl.int64)
        for start in range(0, count, CHUNK):
            keys, weights, ones = _listed(logits_ptr, list_ptr, start, count, peak, scale, CHUNK)
            sums += _from_pivots(keys, tl.where(by_weight, weights, ones), pivots)
        digit = tl.maximum(tl.sum((sums >= target).to(tl.int32)) - 1, 0)
        key += digit.to(tl.uint32) << shift
    return key


@triton.jit
def above(logits_ptr, list_ptr, count, peak, scale, key, CHUNK: tl.constexpr):
    """Weight and number of the ids of the list that are above ``key``."""
    weight = tl.full([], 0, tl.int64)
    number = tl.full([], 0, tl.int64)
    for start in range(0, count, CHUNK):
        keys, weights, ones = _listed(logits_ptr, list_ptr, start, count, peak, scale, CHUNK)
        weight += tl.sum(tl.where(keys > key, weights, 0), axis=0)
        number += tl.sum(tl.where(keys > key, ones, 0), axis=0)
    return weight, number
