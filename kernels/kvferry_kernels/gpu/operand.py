"""What a launcher makes sure of before a kernel runs: it would read and write beside a tensor of another shape."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

FLOATS = (torch.bfloat16, torch.float16, torch.float32)


def check(
    name: str, tensor: Tensor | None, shape: tuple[int, ...], dtypes: Collection[torch.dtype], device: torch.device
) -> None:
    """ValueError, unless it is of this shape, one of these dtypes and on this device, and contiguous; None passes."""
    if tensor is None:
        return
    is_fit = tensor.shape == shape and tensor.dtype in dtypes and tensor.device == device
    if not is_fit or not tensor.is_contiguous():
        raise ValueError(f"{name}: {tensor.dtype} {list(tensor.shape)} on {tensor.device}, or with gaps")
