"""Ways to multiply by a matrix that isn't packed for our own CPU kernels: results are x W^T + b."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Product = Callable[[Tensor], Tensor]


def packed(weight: Tensor, bias: Tensor | None) -> Product:
    """Multiply by oneDNN, with weights in its own order."""
    blocks = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
    return lambda x: multiply_packed(x, blocks, bias)


def plain(weight: Tensor, bias: Tensor | None) -> Product:
    """Multiply by torch, with weights as they are."""
    weight = weight.contiguous()
    return lambda x: functional.linear(x, weight, bias)


def in_tiles_of_one_shape(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Product:
    """Multiply by the GPU's kernel that adds up in one order for any number of rows."""
    from kvferry_kernels.gpu.matmul import matmul

    weight = weight.contiguous()
    return lambda x: matmul(x, weight, bias, dtype)


def can_pack(device: str, dtype: torch.dtype) -> bool:
    """Whether oneDNN can hold weights of this dtype packed on this device."""
    if device != "cpu" or not torch._C._has_mkldnn:
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def multiply_packed(x: Tensor, blocks: Tensor, bias: Tensor | None) -> Tensor:
    """X W^T + b with a packed W."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, blocks, bias, "none", [], "")
    return result
