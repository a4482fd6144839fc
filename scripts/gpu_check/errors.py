"""How far a result is from what is right."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gpu_check.check import Bound, Found

ATTENTION_EPS = {torch.float32: 10.0, torch.float16: 1.0, torch.bfloat16: 1.5}
"""How far a row of attention may be off, in eps of its largest number: half of one is the last rounding, the rest is
that of weights before the second product. In float32 it is that of scores, which are several times larger than 1."""

HALF_STEPS = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""The largest relative error of rounding to the nearest number."""

FLOAT_STEP = 2.0**-24

ROUNDED = Bound(1.0, "of what rounding costs")
"""For what ``rounding`` finds."""

EQUAL = Bound(0.0, "differ")
"""For what ``differing`` finds."""


def attention(out: Tensor, exact: Tensor) -> Found:
    """Of rows ``[..., heads, head_dim]``: the largest error in eps of its row's largest number."""
    off = (out.double() - exact).abs().amax((-1, -2)) / exact.abs().amax((-1, -2)).clamp(min=1e-30)
    return Found(f"{out.numel():,} numbers", float(off.max()) / torch.finfo(out.dtype).eps, "eps")


def rounding(out: Tensor, exact: Tensor, float_steps: float, size: Tensor | None = None) -> Found:
    """The largest error as a part of what computing in float32 and rounding once may cost.

    ``float_steps``: how many roundings to float32, of ``size`` or else of ``exact``, may go before.
    """
    half = HALF_STEPS.get(out.dtype, 0.0)
    if out.dtype == torch.bfloat16 and not out.is_cuda:
        half *= 2  # the interpreter cuts bfloat16 off
    exact = exact.double()
    size = exact.abs() if size is None else size.double()
    tiny = 2.0**-24 if out.dtype == torch.float16 else 2.0**-126
    allowed = exact.abs() * half * (1 + 2.0**-10) + size * float_steps * FLOAT_STEP + tiny
    off = (out.double() - exact).abs() / allowed
    return Found(f"{out.numel():,} numbers", float(off.max()), ROUNDED.unit)


def differing(pairs: Sequence[tuple[Tensor, Tensor]]) -> Found:
    """How many bytes of the first of each pair aren't those of the second."""
    wrong = sum(int((_bytes(one) != _bytes(other)).sum()) for one, other in pairs)
    return Found(f"{sum(one.nbytes for one, _ in pairs):,} bytes", float(wrong), EQUAL.unit)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
