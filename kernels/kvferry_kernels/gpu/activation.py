"""SiLU of one half of a row times the other half. Source: Shazeer, "GLU variants improve transformer" (2020)."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kvferry_kernels.gpu.operand import FLOATS, check
from kvferry_kernels.gpu.shipped import FUSED, Shipped

TILE = 1024
NUM_WARPS = 4
"""Eight numbers a thread: 16 bytes of bfloat16, the widest load."""


@triton.jit
def silu_and_mul_kernel(out_ptr, x_ptr, SIZE: tl.constexpr, TILE: tl.constexpr):
    """One program for each ``TILE`` numbers of a row's result."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = places < SIZE
    gate = tl.load(x_ptr + row * 2 * SIZE + places, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * SIZE + SIZE + places, mask=inside, other=0.0).to(tl.float32)
    result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * SIZE + places, result.to(out_ptr.dtype.element_ty), mask=inside)


def silu_and_mul(x: Tensor) -> Tensor:
    """Map gate and up, ``[num_tokens, 2 * size]``, to silu(gate) * up, ``[num_tokens, size]``.

    bfloat16, float16 or float32, contiguous; computed in float32 and rounded once. ValueError for other tensors.
    """
    size = x.shape[1] // 2
    check("rows", x, (x.shape[0], 2 * size), FLOATS, x.device)
    out = x.new_empty(x.shape[0], size)
    if out.numel():
        grid = (x.shape[0], triton.cdiv(size, TILE))
        silu_and_mul_kernel[grid](out, x, SIZE=size, TILE=TILE, num_warps=NUM_WARPS, num_stages=1, **FUSED)
    return out


def shipped() -> list[Shipped]:
    """The configuration of Llama-3-8B's intermediate size."""
    return [
        Shipped(
            name="silu_and_mul",
            kernel=silu_and_mul_kernel,
            signature={"out_ptr": "*bf16", "x_ptr": "*bf16"},
            constants={"SIZE": 14336, "TILE": TILE},
            num_warps=NUM_WARPS,
            num_stages=1,
        )
    ]
