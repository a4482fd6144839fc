"""Conversions between stored and computed numbers, for other kernels to call.

Bits of e4m3 (1 sign, 4 of exponent, 3 of mantissa; no infinity, NaN is 0x7F): Micikevicius et al. 2022, "FP8 formats
for deep learning".
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvferry_kernels.gpu import paged_cache

FP8_BITS = tl.constexpr(paged_cache.FP8_BITS)
INT8 = tl.constexpr(paged_cache.INT8)

LOG2_E = tl.constexpr(1.4426950408889634)
"""Exponentials are powers of two, which is what the card computes."""

FP8_MAX = tl.constexpr(448.0)
FP8_NAN = tl.constexpr(0x7F)
FP8_LEAST_NORMAL = tl.constexpr(2.0**-6)
FP8_STEPS = tl.constexpr(2.0**9)
"""Numbers below the least normal one are multiples of 1 / this."""

ROUNDER = tl.constexpr(1.5 * 2.0**23)
"""Added to a small float32 and taken away again, it leaves the nearest whole number, of two the even one."""

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))

FLOAT_MAX = tl.constexpr(3.4028234663852886e38)
INT8_MAX = tl.constexpr(127.0)
LEAST_TOP = tl.constexpr(1e-30)
"""Numbers that share a scale and of which none is as large count as 0."""


@triton.jit
def widen(x, dtype: tl.constexpr, KIND: tl.constexpr):
    """Stored numbers in a floating dtype, exactly: each e4m3 and each 8-bit integer is a bfloat16 and a float16."""
    if KIND == FP8_BITS:
        bits = x.to(tl.uint16)
        # As a float16 with the same bits of exponent and mantissa it is 2^8 too small, for e4m3's bias is 7 and not 15.
        half = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True) * 256.0
        return tl.where((bits & 0x7F) == FP8_NAN, float("nan"), half).to(dtype)
    if KIND == INT8:
        return x.to(tl.float32).to(dtype)  # the interpreter has no way from integers to bfloat16
    return x.to(dtype)


@triton.jit
def to_fp8_bits(x):
    """Bits of float32 numbers as e4m3: to nearest, of two the even one; beyond +-448 that."""
    bits = x.to(tl.uint32, bitcast=True)
    sign = (bits >> 24) & 0x80
    size = tl.minimum(tl.abs(x), FP8_MAX)
    size_bits = size.to(tl.uint32, bitcast=True)
    rounded = (size_bits + 0x7FFFF + ((size_bits >> 20) & 1)) >> 20  # a carry out of the mantissa raises the exponent
    normal = rounded - ((127 - 7) << 3)
    small = ((tl.minimum(size, FP8_LEAST_NORMAL) * FP8_STEPS + ROUNDER) - ROUNDER).to(tl.uint32)
    number = tl.where(size < FP8_LEAST_NORMAL, small, normal)
    return (sign | tl.where(x == x, number, FP8_NAN)).to(tl.uint8)


@triton.jit
def to_int8(x):
    """Integers of float32 rows ``[rows, size]`` and each row's scale ``[rows]``: NaN, if not all are finite."""
    is_finite = tl.abs(x) <= FLOAT_MAX
    x = tl.where(is_finite, x, 0.0)
    top = tl.max(tl.abs(x), axis=1)
    largest = tl.full(top.shape, INT8_MAX, tl.float32)
    counts = top > LEAST_TOP
    inverse = tl.where(counts, tl.div_rn(largest, tl.where(counts, top, 1.0)), 0.0)
    whole = (x * inverse[:, None] + ROUNDER) - ROUNDER
    all_finite = tl.min(is_finite.to(tl.int32), axis=1) == 1
    return whole.to(tl.int8), tl.where(all_finite, tl.div_rn(top, largest), float("nan"))


@triton.jit
def capped(scores, CAP: tl.constexpr):
    """CAP * tanh(scores / CAP); scores and result are exponents of two, CAP is a logit."""
    top: tl.constexpr = CAP * LOG2_E
    # tanh x = (1 - e^-2x) / (1 + e^-2x) for positive x: nothing overflows
    small = tl.exp2(tl.abs(scores) * (-2.0 * LOG2_E / top))
    size = top * (1.0 - small) / (1.0 + small)
    return tl.where(scores < 0, -size, size)


@triton.jit
def product(a, b, total):
    """``total`` + a b, summed in float32; of float32 numbers exact products, not those of tf32."""
    if INTERPRETED and a.dtype == tl.bfloat16:  # the interpreter would multiply their bits
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
    return tl.dot(a, b, total, input_precision="ieee")
