"""RMS norm of rows with the residual added before, and with the result quantized for an FP8 product, if wanted.

RMS norm: Zhang, Sennrich, "Root mean square layer normalization" (2019).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvferry_kernels.gpu.numbers import to_fp8_bits
from kvferry_kernels.gpu.operand import FLOATS, check
from kvferry_kernels.gpu.quantized_rows import MAX_SIZE, row_scale, warps_of_row
from kvferry_kernels.gpu.shipped import FUSED, Shipped


@triton.jit
def rms_norm_kernel(
    out_ptr,
    scales_ptr,
    x_ptr,
    residual_ptr,
    weight_ptr,
    eps,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ADDED: tl.constexpr,
    QUANTIZED: tl.constexpr,
):
    """One program a row: ``WIDTH`` is the power of two that holds ``SIZE``."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, WIDTH)
    inside = places < SIZE
    x = tl.load(x_ptr + row * SIZE + places, mask=inside, other=0.0)
    total = x.to(tl.float32)
    if ADDED:
        total += tl.load(residual_ptr + row * SIZE + places, mask=inside, other=0.0)
        tl.store(residual_ptr + row * SIZE + places, total, mask=inside)
    weight = tl.load(weight_ptr + places, mask=inside, other=0.0).to(tl.float32)
    normed = total * tl.rsqrt(tl.sum(total * total, axis=0) / SIZE + eps) * weight
    if QUANTIZED:
        rounded = normed.to(x.dtype).to(tl.float32)  # what a product in x's dtype would see
        scale, inverse = row_scale(rounded)
        tl.store(scales_ptr + row, scale)
        tl.store(out_ptr + row * SIZE + places, to_fp8_bits(rounded * inverse), mask=inside)
    else:
        tl.store(out_ptr + row * SIZE + places, normed.to(x.dtype), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """Normalize rows by their root mean square and scale them by ``weight``.

    ``x`` ``[num_tokens, size]`` and ``weight`` ``[size]``: bfloat16, float16 or float32, contiguous. ``residual``,
    float32 and of x's shape, becomes residual + x in place, and that sum is what is normalized. Returns x's shape and
    dtype. ValueError for other tensors, and for rows of more than ``quantized_rows.MAX_SIZE`` numbers.
    """
    out = torch.empty_like(x)
    _launch(out, None, x, weight, eps, residual)
    return out


def rms_norm_quantized(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """``rms_norm``, then ``quantized_rows.quantize_rows``, bit for bit, in one pass.

    Returns float8_e4m3fn ``[num_tokens, size]`` and float32 scales ``[num_tokens]``.
    """
    numbers = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    scales = x.new_empty(x.shape[0], dtype=torch.float32)
    _launch(numbers.view(torch.uint8), scales, x, weight, eps, residual)
    return numbers, scales


def shipped() -> list[Shipped]:
    """The configurations of Llama-3-8B's hidden size."""
    return [
        _shipped("rms_norm", added=False, quantized=False),
        _shipped("add_rms_norm", added=True, quantized=False),
        _shipped("add_rms_norm_fp8", added=True, quantized=True),
    ]


def _launch(out: Tensor, scales: Tensor | None, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None) -> None:
    num_rows, size = x.shape
    if size > MAX_SIZE:
        raise ValueError(f"rows of {size} numbers: at most {MAX_SIZE} fit")
    check("rows", x, (num_rows, size), FLOATS, x.device)
    check("weight", weight, (size,), FLOATS, x.device)
    check("residual", residual, (num_rows, size), (torch.float32,), x.device)
    if not num_rows:
        return
    rms_norm_kernel[(num_rows,)](
        out,
        out if scales is None else scales,
        x,
        out if residual is None else residual,
        weight,
        eps,
        SIZE=size,
        WIDTH=triton.next_power_of_2(size),
        ADDED=residual is not None,
        QUANTIZED=scales is not None,
        num_warps=warps_of_row(size),
        num_stages=1,
        **FUSED,
    )


def _shipped(name: str, *, added: bool, quantized: bool) -> Shipped:
    size = 4096
    return Shipped(
        name=name,
        kernel=rms_norm_kernel,
        signature={
            "out_ptr": "*u8" if quantized else "*bf16",
            "scales_ptr": "*fp32" if quantized else "*bf16",
            "x_ptr": "*bf16",
            "residual_ptr": "*fp32" if added else "*bf16",
            "weight_ptr": "*bf16",
            "eps": "fp32",
        },
        constants={"SIZE": size, "WIDTH": size, "ADDED": added, "QUANTIZED": quantized},
        num_warps=warps_of_row(size),
        num_stages=1,
    )
