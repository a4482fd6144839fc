"""The numbers of ``engine/philox.py`` in a kernel.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def uniform(seed, choice, position):
    """The number in (0, 1] of a token, float64, bit for bit; ``seed`` is int64, the others are int32."""
    first, second, _, _ = tl.philox(seed, position, choice, 0, 0)
    word = (first.to(tl.uint64) << 32) | second.to(tl.uint64)
    return ((word >> 11).to(tl.float64) + 0.5) * 1.1102230246251565e-16  # 2^-53
