"""Numbers for tests of GPU kernels, and how near to what is right a rounded result must be."""

from __future__ import annotations

import torch
from torch import Tensor

HALF_STEPS = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""The largest relative error of rounding to the nearest number."""

DTYPES = list(HALF_STEPS)


def random(*shape: int, dtype: torch.dtype, device: str, scale: float = 1.0, seed: int = 0) -> Tensor:
    """Normally distributed numbers, the same ones for a shape and a seed."""
    generator = torch.Generator().manual_seed(sum(shape) + 1000 * seed)
    return (torch.randn(*shape, generator=generator) * scale).to(dtype).to(device)


def assert_rounded(result: Tensor, exact: Tensor, float_steps: float, size: Tensor | None = None) -> None:
    """``result`` is ``exact``, computed in float32 and rounded once to result's dtype.

    ``float_steps``: how many roundings to float32, of ``size`` (or of ``exact``), it may be off before that. Triton's
    interpreter cuts bfloat16 off, which counts as two halves of a step.
    """
    half = HALF_STEPS[result.dtype] if result.dtype != torch.float32 else 0.0
    if result.dtype == torch.bfloat16 and not result.is_cuda:
        half *= 2
    exact = exact.double()
    size = exact.abs() if size is None else size.double()
    tiny = 2.0**-24 if result.dtype == torch.float16 else 2.0**-126
    allowed = exact.abs() * half * (1 + 2.0**-10) + size * float_steps * 2.0**-24 + tiny
    off = ((result.double() - exact).abs() - allowed).max() if result.numel() else torch.tensor(0.0)
    assert off <= 0, f"off by {off} more than rounding"
