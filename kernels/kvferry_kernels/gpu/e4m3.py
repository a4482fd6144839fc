"""Numbers of 8 bits in the format e4m3 (largest 448, no infinity), made and read with integer arithmetic.

Cards before compute capability 8.9 have no instruction for it, so the bits are the same on all. Format: Micikevicius
et al., "FP8 formats for deep learning" (2022).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def encode(x: tl.tensor) -> tl.tensor:
    """Round float32 to the nearest e4m3, ties to even, as uint8; beyond 448 is 448. A NaN isn't kept as one."""
    bits = x.to(tl.int32, bitcast=True)
    sign = (bits >> 24) & 0x80
    bits = bits & 0x7FFFFFFF
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)  # biases differ by 120
    # Below 2^-6 numbers are multiples of 2^-9, which is the last bit of a float32 of 2^14.
    small = (tl.abs(x) + 16384.0).to(tl.int32, bitcast=True) & 0xFF
    number = tl.where(bits < 0x3C800000, small, tl.minimum(normal, 0x7E))
    return (number | sign).to(tl.uint8)


@triton.jit
def decode(bits: tl.tensor) -> tl.tensor:
    """Read uint8 as e4m3 into float16, which holds each of them exactly. A NaN is read as 480."""
    wide = bits.to(tl.int16)
    shifted = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    return shifted.to(tl.float16, bitcast=True) * 256.0  # biases differ by 8


@triton.jit
def row_scale(x: tl.tensor) -> tl.tensor:
    """Scale of a row of float32, its largest magnitude / 448, and what to multiply the row by before ``encode``.

    A row of which no magnitude is above 1e-30 counts as zeros. The scale is NaN where a number isn't finite.
    """
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF  # magnitudes are ordered like their bits, NaN last
    top = tl.max(bits, axis=0).to(tl.float32, bitcast=True)
    scale = tl.where(top < float("inf"), tl.div_rn(top, 448.0), float("nan"))
    return scale, tl.where(top > 1e-30, tl.div_rn(448.0, tl.maximum(top, 1e-30)), 0.0)
