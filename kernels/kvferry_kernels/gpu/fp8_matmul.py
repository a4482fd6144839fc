"""Product of rows and weights of 8-bit floats (e4m3), each row and each output with a scale of its own.

Source: Micikevicius et al., "FP8 formats for deep learning" (2022); what is done about sums that keep too few bits:
DeepSeek-AI, "DeepSeek-V3 technical report" (2024).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvferry_kernels.gpu import fp8_tiles
from kvferry_kernels.gpu.card import capability
from kvferry_kernels.gpu.fp8_tiles import (
    FEW_ROWS,
    LARGE,
    SOME_ROWS,
    SQUARE,
    WIDE,
    Tiles,
    large_tiles,
    tiles_for,
    way_of,
)
from kvferry_kernels.gpu.numbers import FP8_BITS, widen
from kvferry_kernels.gpu.operand import FLOATS, check
from kvferry_kernels.gpu.shipped import ARCHITECTURES, FUSED, Shipped

WIDENED, IN_PARTS = tl.constexpr(fp8_tiles.WIDENED), tl.constexpr(fp8_tiles.IN_PARTS)

TOGETHER = 8
"""Tiles of rows that are computed side by side, so that weights are read from the cache."""


@triton.jit
def _load_weight(weight_ptr, places, is_inside, WHOLE: tl.constexpr):
    return tl.load(weight_ptr + places) if WHOLE else tl.load(weight_ptr + places, mask=is_inside, other=0.0)


@triton.jit
def _added(total, x, weight, WAY: tl.constexpr):
    """The sums so far, and the products of one tile of inputs."""
    if WAY == WIDENED:
        total = tl.dot(widen(x, tl.float16, FP8_BITS), widen(weight, tl.float16, FP8_BITS), total)
    elif WAY == IN_PARTS:
        total += tl.dot(x, weight)
    else:
        total = tl.dot(x, weight, total)
    return total


@triton.jit
def _store(
    out_ptr,
    total,
    rows,
    outputs,
    x_scales_ptr,
    weight_scales_ptr,
    bias_ptr,
    num_rows,
    OUTPUTS: tl.constexpr,
    BIASED: tl.constexpr,
):
    x_scales = tl.load(x_scales_ptr + rows, mask=rows < num_rows, other=0.0)
    weight_scales = tl.load(weight_scales_ptr + outputs, mask=outputs < OUTPUTS, other=0.0)
    total = total * x_scales[:, None] * weight_scales[None, :]
    if BIASED:
        total += tl.load(bias_ptr + outputs, mask=outputs < OUTPUTS, other=0.0).to(tl.float32)[None, :]
    places = rows[:, None].to(tl.int64) * OUTPUTS + outputs[None, :]
    is_inside = (rows < num_rows)[:, None] & (outputs < OUTPUTS)[None, :]
    tl.store(out_ptr + places, total.to(out_ptr.dtype.element_ty), mask=is_inside)


@triton.jit(do_not_specialize=("num_rows",))  # else it is compiled anew for 1 and for multiples of 16
def fp8_matmul_kernel(
    out_ptr,
    x_ptr,
    x_scales_ptr,
    weight_ptr,
    weight_scales_ptr,
    bias_ptr,
    num_rows,
    OUTPUTS: tl.constexpr,
    SIZE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr,
    TILE_INPUTS: tl.constexpr,
    HALVES: tl.constexpr,
    TOGETHER: tl.constexpr,
    WAY: tl.constexpr,
    BIASED: tl.constexpr,
):
    """One program a tile of ``TILE_ROWS`` times ``TILE_OUTPUTS`` or twice as many, adding in the order of inputs."""
    WHOLE: tl.constexpr = OUTPUTS % (TILE_OUTPUTS * HALVES) == 0 and SIZE % TILE_INPUTS == 0
    program = tl.program_id(0)
    num_tiles = tl.cdiv(num_rows, TILE_ROWS)
    in_group = TOGETHER * tl.cdiv(OUTPUTS, TILE_OUTPUTS * HALVES)
    first = program // in_group * TOGETHER
    width = tl.minimum(num_tiles - first, TOGETHER)
    first_row = (first + program % in_group % width) * TILE_ROWS
    first_output = program % in_group // width * TILE_OUTPUTS * HALVES
    rows, outputs = first_row + tl.arange(0, TILE_ROWS), first_output + tl.arange(0, TILE_OUTPUTS)
    inputs = tl.arange(0, TILE_INPUTS)
    x_ptr += first_row.to(tl.int64) * SIZE
    weight_ptr += first_output.to(tl.int64) * SIZE
    x_places = tl.arange(0, TILE_ROWS)[:, None] * SIZE + inputs[None, :]
    places = tl.arange(0, TILE_OUTPUTS)[None, :] * SIZE + inputs[:, None]
    is_row, is_output = (rows < num_rows)[:, None], (outputs < OUTPUTS)[None, :]
    is_other = (outputs + TILE_OUTPUTS < OUTPUTS)[None, :]
    total = tl.zeros([TILE_ROWS, TILE_OUTPUTS], tl.float32)
    total_of_others = tl.zeros([TILE_ROWS, TILE_OUTPUTS], tl.float32)
    for start in range(0, SIZE, TILE_INPUTS):
        is_input = inputs < SIZE - start if SIZE % TILE_INPUTS else inputs < TILE_INPUTS
        x = tl.load(x_ptr + x_places, mask=is_row & is_input[None, :], other=0.0)
        weight = _load_weight(weight_ptr, places, is_output & is_input[:, None], WHOLE)
        total = _added(total, x, weight, WAY)
        if HALVES == 2:
            weight = _load_weight(weight_ptr + TILE_OUTPUTS * SIZE, places, is_other & is_input[:, None], WHOLE)
            total_of_others = _added(total_of_others, x, weight, WAY)
        x_ptr += TILE_INPUTS
        weight_ptr += TILE_INPUTS
    scaling = (x_scales_ptr, weight_scales_ptr, bias_ptr)
    _store(out_ptr, total, rows, outputs, *scaling, num_rows, OUTPUTS, BIASED)
    if HALVES == 2:
        _store(out_ptr, total_of_others, rows, outputs + TILE_OUTPUTS, *scaling, num_rows, OUTPUTS, BIASED)


def fp8_matmul(
    x: Tensor,
    x_scales: Tensor,
    weight: Tensor,
    weight_scales: Tensor,
    dtype: torch.dtype,
    bias: Tensor | None = None,
    *,
    batch_invariant: bool = False,
) -> Tensor:
    """Multiply rows by a weight, scale, and add ``bias``: ``[num_rows, outputs]`` in ``dtype``.

    ``x`` ``[num_rows, size]`` and ``weight`` ``[outputs, size]``: float8_e4m3fn, contiguous; ``x_scales``
    ``[num_rows]`` and ``weight_scales`` ``[outputs]``: float32; ``bias`` ``[outputs]`` and ``dtype``: bfloat16, float16
    or float32. Sums are float32 (but for what ``fp8_tiles`` says of tensor cores), in the order of inputs and never cut
    in two; they are scaled, and rounded once. ValueError for other tensors.

    A row's result depends on no other row of its batch. It does depend on the tiles, as instructions for tiles of other
    shapes add in other orders, and these are chosen by the number of rows: unless ``batch_invariant``.
    """
    num_rows, size = x.shape
    outputs = len(weight)
    for name, tensor, length in (("rows", x, num_rows), ("weight", weight, outputs)):
        check(name, tensor, (length, size), (torch.float8_e4m3fn,), x.device)
    for name, tensor, length in (("rows' scales", x_scales, num_rows), ("weight's scales", weight_scales, outputs)):
        check(name, tensor, (length,), (torch.float32,), x.device)
    check("bias", bias, (outputs,), FLOATS, x.device)
    out = x.new_empty(num_rows, outputs, dtype=dtype)
    if not out.numel():
        return out
    way = way_of(capability(x.device))
    tiles = tiles_for(num_rows, outputs, way=way, batch_invariant=batch_invariant)
    if way == fp8_tiles.WIDENED:
        x, weight = x.view(torch.uint8), weight.view(torch.uint8)
    fp8_matmul_kernel[(tiles.programs(num_rows, outputs),)](
        out,
        x,
        x_scales,
        weight,
        weight_scales,
        out if bias is None else bias,
        num_rows,
        **constants_of(tiles, outputs, size, way=way, is_biased=bias is not None),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        **FUSED,
    )
    return out


def constants_of(tiles: Tiles, outputs: int, size: int, *, way: int, is_biased: bool) -> dict[str, int]:
    """The kernel's compile-time arguments."""
    return {
        "OUTPUTS": outputs,
        "SIZE": size,
        "TILE_ROWS": tiles.rows,
        "TILE_OUTPUTS": tiles.outputs,
        "TILE_INPUTS": tiles.inputs,
        "HALVES": tiles.halves,
        "TOGETHER": TOGETHER,
        "WAY": way,
        "BIASED": is_biased,
    }


def shipped() -> list[Shipped]:
    """The configurations of Llama-3-8B's last product of a layer, the longest sums."""
    sizes = {"few": FEW_ROWS, "some": SOME_ROWS, "wide": WIDE, "square": SQUARE, "large": LARGE}
    found = []
    for architecture in ARCHITECTURES:
        way = way_of(divmod(architecture, 10))
        used = (FEW_ROWS, SOME_ROWS, *large_tiles(way))
        found += [_shipped(name, tiles, way, architecture) for name, tiles in sizes.items() if tiles in used]
    return found


def _shipped(name: str, tiles: Tiles, way: int, architecture: int) -> Shipped:
    number = "*u8" if way == fp8_tiles.WIDENED else "*fp8e4nv"
    return Shipped(
        name=f"fp8_matmul, {name}",
        kernel=fp8_matmul_kernel,
        signature={
            "out_ptr": "*bf16",
            "x_ptr": number,
            "x_scales_ptr": "*fp32",
            "weight_ptr": number,
            "weight_scales_ptr": "*fp32",
            "bias_ptr": "*bf16",
            "num_rows": "i32",
        },
        constants=constants_of(tiles, 4096, 14336, way=way, is_biased=False),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        architectures=(architecture,),
    )
