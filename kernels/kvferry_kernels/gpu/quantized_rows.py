"""Rows of 8-bit floats (e4m3), each with a scale of its own.

Source: Micikevicius et al., "FP8 formats for deep learning" (2022).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvferry_kernels.gpu import e4m3
from kvferry_kernels.gpu.operand import FLOATS, check
from kvferry_kernels.gpu.shipped import Shipped

MAX_SIZE = 32768
"""A row is held in the registers of one program."""

NUMBERS_PER_THREAD = 16
MAX_WARPS = 16


@triton.jit
def quantize_rows_kernel(
    numbers_ptr: tl.tensor, scales_ptr: tl.tensor, x_ptr: tl.tensor, SIZE: tl.constexpr, WIDTH: tl.constexpr
) -> None:
    """One program a row: ``WIDTH`` is the power of two that holds ``SIZE``."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, WIDTH)
    inside = places < SIZE
    x = tl.load(x_ptr + row * SIZE + places, mask=inside, other=0.0).to(tl.float32)
    scale, inverse = e4m3.row_scale(x)
    tl.store(scales_ptr + row, scale)
    tl.store(numbers_ptr + row * SIZE + places, e4m3.encode(x * inverse), mask=inside)


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
