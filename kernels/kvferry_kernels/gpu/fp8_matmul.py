"""Product of rows and weights of 8 bits (e4m3), each row and each output with a scale of its own, and the rows' making.

Source: Micikevicius et al., "FP8 formats for deep learning" (2022). Hopper's tensor cores keep fewer bits than float32
within a sum; as in DeepSeek-AI, "DeepSeek-V3 technical report" (2024), theirs is added to one of float32 every 128
numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvferry_kernels.gpu import e4m3
from kvferry_kernels.gpu.norm import MAX_SIZE, warps_of_row
from kvferry_kernels.gpu.shipped import Shipped

HAS_FP8 = (8, 9)
"""The first compute capability with tensor cores for e4m3. Earlier ones multiply the same numbers as float16."""

TOGETHER = 8
"""Tiles of rows that are computed side by side, so that weights are read from the cache."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """What one program computes, ``rows`` times ``outputs``, and how many inputs it takes at once."""

    rows: int
    outputs: int
    inputs: int
    num_warps: int
    num_stages: int


FEW_ROWS = Tiles(16, 32, 256, 4, 6)
"""The time it takes is that of reading weights: as many programs as can be had without cutting sums in two."""

SOME_ROWS = Tiles(64, 64, 128, 4, 4)
MANY_ROWS = Tiles(128, 128, 128, 8, 3)


@triton.jit
def fp8_matmul_kernel(
    out_ptr: tl.tensor,
    x_ptr: tl.tensor,
    x_scales_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    weight_scales_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    num_rows: tl.tensor,
    OUTPUTS: tl.constexpr,
    SIZE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr,
    TILE_INPUTS: tl.constexpr,
    TOGETHER: tl.constexpr,
    WIDENED: tl.constexpr,
    BIASED: tl.constexpr,
) -> None:
    """One program a tile, which adds up its products in the order of inputs."""
    program = tl.program_id(0)
    num_tiles = tl.cdiv(num_rows, TILE_ROWS)
    in_group = TOGETHER * tl.cdiv(OUTPUTS, TILE_OUTPUTS)
    first = program // in_group * TOGETHER
    width = tl.minimum(num_tiles - first, TOGETHER)
    rows = (first + program % in_group % width) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    outputs = program % in_group // width * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    inputs = tl.arange(0, TILE_INPUTS)
    x_ptrs = x_ptr + rows[:, None].to(tl.int64) * SIZE + inputs[None, :]
    weight_ptrs = weight_ptr + outputs[None, :].to(tl.int64) * SIZE + inputs[:, None]
    total = tl.zeros([TILE_ROWS, TILE_OUTPUTS], tl.float32)
    for start in range(0, SIZE, TILE_INPUTS):
        is_row, is_output = (rows < num_rows)[:, None], (outputs < OUTPUTS)[None, :]
        if SIZE % TILE_INPUTS:
            is_row &= (inputs < SIZE - start)[None, :]
            is_output &= (inputs < SIZE - start)[:, None]
        x = tl.load(x_ptrs, mask=is_row, other=0.0)
        weight = tl.load(weight_ptrs, mask=is_output, other=0.0)
        if WIDENED:
            total = tl.dot(e4m3.decode(x), e4m3.decode(weight), total)
        else:
            total = tl.dot(x, weight, total, max_num_imprecise_acc=128)
        x_ptrs += TILE_INPUTS
        weight_ptrs += TILE_INPUTS
    x_scales = tl.load(x_scales_ptr + rows, mask=rows < num_rows, other=0.0)
    weight_scales = tl.load(weight_scales_ptr + outputs, mask=outputs < OUTPUTS, other=0.0)
    total = total * x_scales[:, None] * weight_scales[None, :]
    if BIASED:
        total += tl.load(bias_ptr + outputs, mask=outputs < OUTPUTS, other=0.0).to(tl.float32)[None, :]
    out_ptrs = out_ptr + rows[:, None].to(tl.int64) * OUTPUTS + outputs[None, :]
    is_inside = (rows < num_rows)[:, None] & (outputs < OUTPUTS)[None, :]
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=is_inside)


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
    products. ValueError for rows of more than ``norm.MAX_SIZE`` numbers.
    """
    num_rows, size = x.shape
    if size > MAX_SIZE:
        raise ValueError(f"rows of {size} numbers: at most {MAX_SIZE} fit")
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


def tiles_for(num_rows: int, *, batch_invariant: bool) -> Tiles:
    """The tiles for so many rows; ``batch_invariant`` has the same for any number."""
    if batch_invariant or FEW_ROWS.rows < num_rows <= SOME_ROWS.rows:
        return SOME_ROWS
    return FEW_ROWS if num_rows <= FEW_ROWS.rows else MANY_ROWS


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
    """X weight^T, scaled, plus ``bias``: ``[num_rows, outputs]`` in ``dtype``, bfloat16, float16 or float32.

    ``x`` ``[num_rows, size]`` and ``weight`` ``[outputs, size]``: float8_e4m3fn, contiguous; ``x_scales``
    ``[num_rows]`` and ``weight_scales`` ``[outputs]``: float32; ``bias`` ``[outputs]`` of any of the dtypes. Sums are
    float32, in the order of inputs, never cut in two; they are scaled, and rounded once.

    A row's result depends on no other row of its batch. It does depend on which tiles are taken, as instructions for
    tiles of other shapes add in other orders: by their number (``tiles_for``), unless ``batch_invariant``.
    """
    num_rows, size = x.shape
    outputs = len(weight)
    out = x.new_empty(num_rows, outputs, dtype=dtype)
    if not out.numel():
        return out
    tiles = tiles_for(num_rows, batch_invariant=batch_invariant)
    is_widened = x.is_cuda and torch.cuda.get_device_capability(x.device) < HAS_FP8
    if is_widened:
        x, weight = x.view(torch.uint8), weight.view(torch.uint8)
    grid = (triton.cdiv(num_rows, tiles.rows) * triton.cdiv(outputs, tiles.outputs),)
    fp8_matmul_kernel[grid](
        out,
        x,
        x_scales,
        weight,
        weight_scales,
        out if bias is None else bias,
        num_rows,
        **constants_of(tiles, outputs, size, is_widened=is_widened, is_biased=bias is not None),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    return out


def constants_of(tiles: Tiles, outputs: int, size: int, *, is_widened: bool, is_biased: bool) -> dict[str, int]:
    """The kernel's compile-time arguments."""
    return {
        "OUTPUTS": outputs,
        "SIZE": size,
        "TILE_ROWS": tiles.rows,
        "TILE_OUTPUTS": tiles.outputs,
        "TILE_INPUTS": tiles.inputs,
        "TOGETHER": TOGETHER,
        "WIDENED": is_widened,
        "BIASED": is_biased,
    }


def shipped() -> list[Shipped]:
    """The configurations of Llama-3-8B's last product of a layer, the longest sums."""
    quantize = Shipped(
        name="quantize_rows",
        kernel=quantize_rows_kernel,
        signature={"numbers_ptr": "*u8", "scales_ptr": "*fp32", "x_ptr": "*bf16"},
        constants={"SIZE": 14336, "WIDTH": 16384},
        num_warps=warps_of_row(14336),
        num_stages=1,
    )
    sizes = {"few": FEW_ROWS, "some": SOME_ROWS, "many": MANY_ROWS}
    products = [
        _shipped(f"fp8_matmul_{name}{'_widened' if is_widened else ''}", tiles, is_widened=is_widened)
        for name, tiles in sizes.items()
        for is_widened in (False, True)
    ]
    return [quantize, *products]


def _shipped(name: str, tiles: Tiles, *, is_widened: bool) -> Shipped:
    number = "*u8" if is_widened else "*fp8e4nv"
    return Shipped(
        name=name,
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
        constants=constants_of(tiles, 4096, 14336, is_widened=is_widened, is_biased=False),
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
