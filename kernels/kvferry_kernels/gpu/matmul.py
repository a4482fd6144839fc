"""Products whose rows don't depend on their number, for ``--batch-invariant``.

A library chooses how to add up by the number of rows. Here every program computes a tile of one shape, over the inputs
in one order, whatever the batch: see https://thinkingmachines.ai/blog/defeating-nondeterminism-in-llm-inference/.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvferry_kernels.gpu.numbers import product
from kvferry_kernels.gpu.operand import FLOATS, check
from kvferry_kernels.gpu.shipped import FUSED, Shipped

ROWS, OUTPUTS, INPUTS = 64, 128, 64
"""Of a tile; float32 takes half the inputs at once, for it fills as many bytes with them."""

NUM_WARPS, NUM_STAGES = 4, 4
TOGETHER = 8
"""Tiles of rows that go through the same weights one after another, so that these are read from the cache."""


@triton.jit
def matmul_kernel(
    out_ptr: tl.tensor,
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    bias_ptr: tl.tensor,
    num_rows: tl.tensor,
    SIZE: tl.constexpr,
    NUM_OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    TOGETHER: tl.constexpr,
    BIASED: tl.constexpr,
) -> None:
    """One program for a tile of rows and outputs. Offsets are of 64 bits: a head's logits are many."""
    ACROSS: tl.constexpr = (NUM_OUTPUTS + OUTPUTS - 1) // OUTPUTS
    first = tl.program_id(0) // (TOGETHER * ACROSS) * TOGETHER
    together = min(tl.cdiv(num_rows, ROWS) - first, TOGETHER)
    within = tl.program_id(0) % (TOGETHER * ACROSS)
    rows = (first + within % together).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = (within // together).to(tl.int64) * OUTPUTS + tl.arange(0, OUTPUTS)
    places = tl.arange(0, INPUTS)
    # Beyond the last row and column the last one is read again, and nothing is stored.
    x_ptrs = x_ptr + tl.minimum(rows, num_rows - 1)[:, None] * SIZE + places
    weight_ptrs = weight_ptr + tl.minimum(columns, NUM_OUTPUTS - 1)[None, :] * SIZE + places[:, None]
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for start in range(0, SIZE, INPUTS):
        if SIZE % INPUTS == 0:
            x, weight = tl.load(x_ptrs), tl.load(weight_ptrs)
        else:
            inside = start + places < SIZE
            x = tl.load(x_ptrs, mask=inside[None, :], other=0.0)
            weight = tl.load(weight_ptrs, mask=inside[:, None], other=0.0)
        total = product(x, weight, total)
        x_ptrs += INPUTS
        weight_ptrs += INPUTS
    if BIASED:
        total += tl.load(bias_ptr + columns, mask=columns < NUM_OUTPUTS, other=0.0).to(tl.float32)[None, :]
    wanted = (rows < num_rows)[:, None] & (columns < NUM_OUTPUTS)[None, :]
    tl.store(out_ptr + rows[:, None] * NUM_OUTPUTS + columns, total.to(out_ptr.dtype.element_ty), mask=wanted)


def matmul(x: Tensor, weight: Tensor, bias: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """Return x W^T + b, ``[num_rows, outputs]``, in ``dtype`` (x's own, if left out).

    ``x`` ``[num_rows, size]``, ``weight`` ``[outputs, size]``, ``bias`` ``[outputs]``: all of one dtype, bfloat16,
    float16 or float32, contiguous, on one device. Sums are float32 and rounded once. A row's bits depend on that row
    alone. ValueError for other tensors.
    """
    num_rows, size = x.shape
    outputs = weight.shape[0]
    check("rows", x, (num_rows, size), FLOATS, x.device)
    check("weight", weight, (outputs, size), (x.dtype,), x.device)
    check("bias", bias, (outputs,), (x.dtype,), x.device)
    out = x.new_empty(num_rows, outputs, dtype=dtype or x.dtype)
    num_programs = triton.cdiv(num_rows, ROWS) * triton.cdiv(outputs, OUTPUTS)
    if num_programs:
        matmul_kernel[(num_programs,)](
            out,
            x,
            weight,
            out if bias is None else bias,
            num_rows,
            **_constants(size, outputs, x.dtype, is_biased=bias is not None),
            num_warps=NUM_WARPS,
            num_stages=NUM_STAGES,
            **FUSED,
        )
    return out


def _constants(size: int, outputs: int, dtype: torch.dtype, *, is_biased: bool) -> dict[str, object]:
    return {
        "SIZE": size,
        "NUM_OUTPUTS": outputs,
        "ROWS": ROWS,
        "OUTPUTS": OUTPUTS,
        "INPUTS": INPUTS // 2 if dtype == torch.float32 else INPUTS,
        "TOGETHER": TOGETHER,
        "BIASED": is_biased,
    }


def shipped() -> list[Shipped]:
    """Gate and up of Llama-3-8B in bfloat16, and its logits in float32."""
    types = {**dict.fromkeys(("out_ptr", "x_ptr", "weight_ptr", "bias_ptr"), "*bf16"), "num_rows": "i32"}
    layer = _constants(4096, 2 * 14336, torch.bfloat16, is_biased=False)
    head = _constants(4096, 128256, torch.bfloat16, is_biased=False)
    return [
        Shipped("matmul, one tile for all", matmul_kernel, types, layer, NUM_WARPS, NUM_STAGES),
        Shipped("matmul to float32", matmul_kernel, {**types, "out_ptr": "*fp32"}, head, NUM_WARPS, NUM_STAGES),
    ]
