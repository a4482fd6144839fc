"""Rotary position embedding of Q and K, after an RMS norm of each head where the model has one.

Rotary embedding: Su et al., "RoFormer" (2021); pairs are (i, i + head_dim / 2). Norms of heads: Henry et al.,
"Query-key normalization for transformers" (2020), as Qwen3 has them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvferry_kernels.gpu.operand import FLOATS, check
from kvferry_kernels.gpu.shipped import FUSED, Shipped

HEADS_TOGETHER = 8
"""Heads of one program: with 128 numbers each, eight for every thread of four warps."""

NUM_WARPS = 4


@triton.jit
def turned(
    low_ptr,
    inside,
    norm_ptr,
    cos_ptr,
    sin_ptr,
    position,
    eps,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    NORMED: tl.constexpr,
):
    """Both halves of heads, normalized and rotated; ``low_ptr`` ``[heads, WIDTH]`` says where first halves are."""
    HALF: tl.constexpr = DIM // 2
    places = tl.arange(0, WIDTH)
    low = tl.load(low_ptr, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(low_ptr + HALF, mask=inside, other=0.0).to(tl.float32)
    if NORMED:
        squares = tl.sum(low * low + high * high, axis=1)
        shrink = tl.rsqrt(squares / DIM + eps)[:, None]
        low *= shrink * tl.load(norm_ptr + places, mask=places < HALF, other=0.0).to(tl.float32)[None, :]
        high *= shrink * tl.load(norm_ptr + HALF + places, mask=places < HALF, other=0.0).to(tl.float32)[None, :]
    cos = tl.load(cos_ptr + position * HALF + places, mask=places < HALF, other=0.0)[None, :]
    sin = tl.load(sin_ptr + position * HALF + places, mask=places < HALF, other=0.0)[None, :]
    return low * cos - high * sin, high * cos + low * sin


@triton.jit
def rotate_kernel(
    q_ptr,
    k_ptr,
    q_stride,
    k_stride,
    q_norm_ptr,
    k_norm_ptr,
    positions_ptr,
    cos_ptr,
    sin_ptr,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    TOGETHER: tl.constexpr,
    NORMED: tl.constexpr,
):
    """In place. One program for ``TOGETHER`` heads of a token: first those of Q, then those of K."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    position = tl.load(positions_ptr + token)
    places = tl.arange(0, WIDTH)[None, :]
    if part < tl.cdiv(HEADS, TOGETHER):
        heads = part * TOGETHER + tl.arange(0, TOGETHER)[:, None]
        inside = (heads < HEADS) & (places < DIM // 2)
        first = q_ptr + token * q_stride + heads * DIM + places
        low, high = turned(first, inside, q_norm_ptr, cos_ptr, sin_ptr, position, eps, DIM, WIDTH, NORMED)
    else:
        heads = (part - tl.cdiv(HEADS, TOGETHER)) * TOGETHER + tl.arange(0, TOGETHER)[:, None]
        inside = (heads < KV_HEADS) & (places < DIM // 2)
        first = k_ptr + token * k_stride + heads * DIM + places
        low, high = turned(first, inside, k_norm_ptr, cos_ptr, sin_ptr, position, eps, DIM, WIDTH, NORMED)
    tl.store(first, low.to(q_ptr.dtype.element_ty), mask=inside)
    tl.store(first + DIM // 2, high.to(q_ptr.dtype.element_ty), mask=inside)


def rotate(
    q: Tensor,
    k: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Rotate Q and K in place.

    ``q`` ``[num_tokens, heads, head_dim]`` and ``k`` ``[num_tokens, kv_heads, head_dim]``: bfloat16, float16 or
    float32, a token's heads one after another; they may be parts of one tensor. ``positions`` int64 ``[num_tokens]``;
    ``cos``, ``sin`` float32 ``[max_len, head_dim / 2]``. ``q_norm``, ``k_norm`` ``[head_dim]``, both or none: weights
    of an RMS norm of each head before. ValueError for other tensors; which positions they hold isn't checked.
    """
    num_tokens, heads, dim = q.shape
    kv_heads = k.shape[1]
    is_normed = check_tables(num_tokens, dim, positions, cos, sin, q_norm, k_norm, q.device)
    for name, x in (("Q", q), ("K", k)):
        if x.shape[0] != num_tokens or x.shape[2] != dim or x.dtype != q.dtype or x.dtype not in FLOATS:
            raise ValueError(f"{name}: {x.dtype} {list(x.shape)}")
        if num_tokens and x.stride()[1:] != (dim, 1):
            raise ValueError(f"{name}: a token's heads don't lie one after another")
    if not num_tokens:
        return
    grid = (num_tokens, triton.cdiv(heads, HEADS_TOGETHER) + triton.cdiv(kv_heads, HEADS_TOGETHER))
    rotate_kernel[grid](
        q,
        k,
        q.stride(0),
        k.stride(0),
        q if q_norm is None else q_norm,
        k if k_norm is None else k_norm,
        positions,
        cos,
        sin,
        eps,
        HEADS=heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        WIDTH=triton.next_power_of_2(dim // 2),
        TOGETHER=HEADS_TOGETHER,
        NORMED=is_normed,
        num_warps=NUM_WARPS,
        num_stages=1,
        **FUSED,
    )


def check_tables(
    num_tokens: int,
    dim: int,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    device: torch.device,
) -> bool:
    """Whether heads are normalized. ValueError if something doesn't fit, or one norm is without the other."""
    check("positions", positions, (num_tokens,), (torch.int64,), device)
    for name, table in (("cosines", cos), ("sines", sin)):
        check(name, table, (len(cos), dim // 2), (torch.float32,), device)
    for name, norm in (("norm of Q", q_norm), ("norm of K", k_norm)):
        check(name, norm, (dim,), FLOATS, device)
    if (q_norm is None) != (k_norm is None):
        raise ValueError("Q and K are both normalized or neither")
    return q_norm is not None


def shipped() -> list[Shipped]:
    """The configuration of Llama-3-8B."""
    types = {
        "*bf16": ("q_ptr", "k_ptr", "q_norm_ptr", "k_norm_ptr"),
        "*fp32": ("cos_ptr", "sin_ptr"),
        "*i64": ("positions_ptr",),
        "i32:16": ("q_stride", "k_stride"),
        "fp32": ("eps",),
    }
    return [
        Shipped(
            name="rotate",
            kernel=rotate_kernel,
            signature={argument: kind for kind, arguments in types.items() for argument in arguments},
            constants={
                "HEADS": 32,
                "KV_HEADS": 8,
                "DIM": 128,
                "WIDTH": 64,
                "TOGETHER": HEADS_TOGETHER,
                "NORMED": False,
            },
            num_warps=NUM_WARPS,
            num_stages=1,
        )
    ]
