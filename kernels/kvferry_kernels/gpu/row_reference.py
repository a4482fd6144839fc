"""What is right, in plain torch, of the kernels that work on rows: for those that ``reference`` doesn't define already.

``norm.rms_norm`` and ``activation.silu_and_mul`` are ``reference.rms_norm`` and ``reference.silu_and_mul``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvferry_kernels import reference

FP8_MAX = 448.0


def rotate(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, norm: Tensor | None, eps: float) -> Tensor:
    """Heads ``[num_tokens, heads, head_dim]`` as rotary.rotate leaves them, in float64."""
    x = x.double()
    if norm is not None:
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * norm.double()
    row_cos, row_sin = cos[positions].double()[:, None], sin[positions].double()[:, None]
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * row_cos - high * row_sin, high * row_cos + low * row_sin), dim=-1)


def rotate_and_cache(
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """See rotary_cache.rotate_and_cache; Q in float64."""
    _, kv_heads, block_size, dim = k_cache.shape
    heads = qkv.view(len(qkv), -1, dim)
    q, k, v = heads[:, : -2 * kv_heads], heads[:, -2 * kv_heads : -kv_heads], heads[:, -kv_heads:]
    written = slots >= 0
    blocks, offsets = slots[written] // block_size, slots[written] % block_size
    k_cache[blocks, :, offsets] = rotate(k, positions, cos, sin, k_norm, eps)[written].to(k_cache.dtype)
    v_cache[blocks, :, offsets] = v[written].to(v_cache.dtype)
    return rotate(q, positions, cos, sin, q_norm, eps)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """See quantized_rows.quantize_rows."""
    top = x.float().abs().amax(-1)
    largest = torch.full_like(top, FP8_MAX)  # a number divided by a tensor is rounded twice
    inverse = torch.where(top > reference.LEAST_TOP, largest / top, 0.0)
    numbers = (x.float() * inverse[:, None]).clamp(-FP8_MAX, FP8_MAX)
    return numbers.to(torch.float8_e4m3fn), top / largest + (top - top)


def fp8_matmul(
    x: Tensor, x_scales: Tensor, weight: Tensor, weight_scales: Tensor, bias: Tensor | None = None
) -> Tensor:
    """See fp8_matmul.fp8_matmul; float64."""
    total = x.double() @ weight.double().T * x_scales.double()[:, None] * weight_scales.double()
    return total if bias is None else total + bias.double()
