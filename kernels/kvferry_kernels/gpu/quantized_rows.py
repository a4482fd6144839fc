"""Rows of 8-bit floats (e4m3), each with a scale of its own.

Source: Micikevicius et al., "FP8 formats for deep learning" (2022).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvferry_kernels.gpu.numbers import FP8_MAX, LEAST_TOP, to_fp8_bits
from kvferry_kernels.gpu.operand import FLOATS, check
from kvferry_kernels.gpu.shipped import FUSED, Shipped

MAX_SIZE = 32768
"""A row is held in the registers of one program."""

NUMBERS_PER_THREAD = 16
MAX_WARPS = 16


@triton.jit
def row_scale(x):
    """Scale of a row of float32, its largest magnitude / 448, and what to multiply the row by before it is rounded.

    A row of which no magnitude is above 1e-30 counts as zeros. The scale is NaN where a number isn't finite.
    """
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF  # magnitudes are ordered like their bits, NaN last
    top = tl.max(bits, axis=0).to(tl.float32, bitcast=True)
    scale = tl.where(top < float("inf"), tl.div_rn(top, FP8_MAX), float("nan"))
    return scale, tl.where(top > LEAST_TOP, tl.div_rn(FP8_MAX, tl.maximum(top, LEAST_TOP)), 0.0)


@triton.jit
def quantize_rows_kernel(numbers_ptr, scales_ptr, x_ptr, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """One program a row: ``WIDTH`` is the power of two that holds ``SIZE``."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, WIDTH)
    inside = places < SIZE
    x = tl.load(x_ptr + row * SIZE + places, mask=inside, other=0.0).to(tl.float32)
    scale, inverse = row_scale(x)
    tl.store(scales_ptr + row, scale)
    tl.store(numbers_ptr + row * SIZE + places, to_fp8_bits(x * inverse), mask=inside)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize rows ``[num_rows, size]`` to e4m3, each by its largest magnitude, which becomes 448.

    ``x``: bfloat16, float16 or float32, contiguous. Returns float8_e4m3fn of x's shape and float32 scales
    ``[num_rows]``: a number is about e4m3 * scale. The scale of a row with a NaN or infinity is NaN, and so are its
    products. ValueError for other tensors, and for rows of more than ``MAX_SIZE`` numbers.
    """
    num_rows, size = x.shape
    if size > MAX_SIZE:
        raise ValueError(f"rows of {size} numbers: at most {MAX_SIZE} fit")
    check("rows", x, (num_rows, size), FLOATS, x.device)
    numbers = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    scales = x.new_empty(num_rows, dtype=torch.float32)
    if num_rows:
        quantize_rows_kernel[(num_rows,)](
            numbers.view(torch.uint8),
            scales,
            x,
            SIZE=size,
            WIDTH=triton.next_power_of_2(size),
            num_warps=warps_of_row(size),
            num_stages=1,
            **FUSED,
        )
    return numbers, scales


def warps_of_row(size: int) -> int:
    """Warps for a program that holds a row of so many numbers."""
    width: int = triton.next_power_of_2(size)
    return min(MAX_WARPS, max(1, width // (32 * NUMBERS_PER_THREAD)))


def shipped() -> list[Shipped]:
    """The configuration of Llama-3-8B's intermediate size."""
    size = 14336
    return [
        Shipped(
            name="quantize_rows",
            kernel=quantize_rows_kernel,
            signature={"numbers_ptr": "*u8", "scales_ptr": "*fp32", "x_ptr": "*bf16"},
            constants={"SIZE": size, "WIDTH": triton.next_power_of_2(size)},
            num_warps=warps_of_row(size),
            num_stages=1,
        )
    ]
