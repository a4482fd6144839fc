"""Rotary position embedding of Q and K, after an RMS norm of each head where the model has one.

Rotary embedding: Su et al., "RoFormer" (2021); pairs are (i, i + head_dim / 2). Norms of heads: Henry et al.,
"Query-key normalization for transformers" (2020), as Qwen3 has them.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kvferry_kernels.gpu.shipped import Shipped

HEADS_TOGETHER = 8
"""Heads of one program: with 128 numbers each, eight for every thread of four warps."""

NUM_WARPS = 4


@triton.jit
def _turned(
    low_ptr: tl.tensor,
    inside: tl.tensor,
    norm_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    position: tl.tensor,
    eps: tl.tensor,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    NORMED: tl.constexpr,
) -> tl.tensor:
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
    q_ptr: tl.tensor,
    k_ptr: tl.tensor,
    q_stride: tl.tensor,
    k_stride: tl.tensor,
    q_norm_ptr: tl.tensor,
    k_norm_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    eps: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    TOGETHER: tl.constexpr,
    NORMED: tl.constexpr,
) -> None:
    """In place. One program for ``TOGETHER`` heads of a token: first those of Q, then those of K."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    position = tl.load(positions_ptr + token)
    places = tl.arange(0, WIDTH)[None, :]
    if part < tl.cdiv(HEADS, TOGETHER):
        heads = part * TOGETHER + tl.arange(0, TOGETHER)[:, None]
        inside = (heads < HEADS) & (places < DIM // 2)
        first = q_ptr + token * q_stride + heads * DIM + places
        low, high = _turned(first, inside, q_norm_ptr, cos_ptr, sin_ptr, position, eps, DIM, WIDTH, NORMED)
    else:
        heads = (part - tl.cdiv(HEADS, TOGETHER)) * TOGETHER + tl.arange(0, TOGETHER)[:, None]
        inside = (heads < KV_HEADS) & (places < DIM // 2)
        first = k_ptr + token * k_stride + heads * DIM + places
        low, high = _turned(first, inside, k_norm_ptr, cos_ptr, sin_ptr, position, eps, DIM, WIDTH, NORMED)
    tl.store(first, low.to(q_ptr.dtype.element_ty), mask=inside)
    tl.store(first + DIM // 2, high.to(q_ptr.dtype.element_ty), mask=inside)


@triton.jit
def rotate_and_cache_kernel(
    query_ptr: tl.tensor,
    k_cache_ptr: tl.tensor,
    v_cache_ptr: tl.tensor,
    qkv_ptr: tl.tensor,
    q_norm_ptr: tl.tensor,
    k_norm_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    eps: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TOGETHER: tl.constexpr,
    NORMED: tl.constexpr,
) -> None:
    """One program for ``TOGETHER`` heads of a token: first those of Q, then those of K, then those of V."""
    HALF: tl.constexpr = DIM // 2
    Q_PARTS: tl.constexpr = (HEADS + TOGETHER - 1) // TOGETHER
    K_PARTS: tl.constexpr = (KV_HEADS + TOGETHER - 1) // TOGETHER
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    places = tl.arange(0, WIDTH)[None, :]
    together = tl.arange(0, TOGETHER)[:, None]
    qkv_ptr += token * (HEADS + 2 * KV_HEADS) * DIM
    if part < Q_PARTS:
        heads = part * TOGETHER + together
        inside = (heads < HEADS) & (places < HALF)
        position = tl.load(positions_ptr + token)
        first = qkv_ptr + heads * DIM + places
        low, high = _turned(first, inside, q_norm_ptr, cos_ptr, sin_ptr, position, eps, DIM, WIDTH, NORMED)
        out = query_ptr + (token * HEADS + heads) * DIM + places
        tl.store(out, low.to(query_ptr.dtype.element_ty), mask=inside)
        tl.store(out + HALF, high.to(query_ptr.dtype.element_ty), mask=inside)
        return
    slot = tl.load(slots_ptr + token)
    if slot < 0:
        return
    block = slot // BLOCK_SIZE
    if part < Q_PARTS + K_PARTS:
        heads = (part - Q_PARTS) * TOGETHER + together
        inside = (heads < KV_HEADS) & (places < HALF)
        position = tl.load(positions_ptr + token)
        first = qkv_ptr + (HEADS + heads) * DIM + places
        low, high = _turned(first, inside, k_norm_ptr, cos_ptr, sin_ptr, position, eps, DIM, WIDTH, NORMED)
        out = k_cache_ptr + ((block * KV_HEADS + heads) * BLOCK_SIZE + slot % BLOCK_SIZE) * DIM + places
        tl.store(out, low.to(k_cache_ptr.dtype.element_ty), mask=inside)
        tl.store(out + HALF, high.to(k_cache_ptr.dtype.element_ty), mask=inside)
    else:
        heads = (part - Q_PARTS - K_PARTS) * TOGETHER + together
        inside = (heads < KV_HEADS) & (places < HALF)
        first = qkv_ptr + (HEADS + KV_HEADS + heads) * DIM + places
        out = v_cache_ptr + ((block * KV_HEADS + heads) * BLOCK_SIZE + slot % BLOCK_SIZE) * DIM + places
        tl.store(out, tl.load(first, mask=inside), mask=inside)
        tl.store(out + HALF, tl.load(first + HALF, mask=inside), mask=inside)


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
    of an RMS norm of each head before. Positions aren't checked.
    """
    num_tokens, heads, dim = q.shape
    if not num_tokens:
        return
    kv_heads = k.shape[1]
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
        NORMED=_both(q_norm, k_norm),
        num_warps=NUM_WARPS,
        num_stages=1,
    )


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
    """Rotate Q and K, write K and V into the cache, return Q as ``[num_tokens, heads, head_dim]``.

    ``qkv`` ``[num_tokens, (heads + 2 * kv_heads) * head_dim]``: bfloat16, float16 or float32, which is the dtype of
    both caches, ``[num_blocks, kv_heads, block_size, head_dim]``; all contiguous. ``slots`` int64 ``[num_tokens]``:
    block * block_size + offset, none twice; what has a negative one isn't written. The others as for ``rotate``.
    """
    num_tokens = len(qkv)
    _, kv_heads, block_size, dim = k_cache.shape
    heads = qkv.shape[1] // dim - 2 * kv_heads
    query = qkv.new_empty(num_tokens, heads, dim)
    if not num_tokens:
        return query
    grid = (num_tokens, triton.cdiv(heads, HEADS_TOGETHER) + 2 * triton.cdiv(kv_heads, HEADS_TOGETHER))
    rotate_and_cache_kernel[grid](
        query,
        k_cache,
        v_cache,
        qkv,
        qkv if q_norm is None else q_norm,
        qkv if k_norm is None else k_norm,
        positions,
        slots,
        cos,
        sin,
        eps,
        HEADS=heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        WIDTH=triton.next_power_of_2(dim // 2),
        BLOCK_SIZE=block_size,
        TOGETHER=HEADS_TOGETHER,
        NORMED=_both(q_norm, k_norm),
        num_warps=NUM_WARPS,
        num_stages=1,
    )
    return query


def _both(q_norm: Tensor | None, k_norm: Tensor | None) -> bool:
    if (q_norm is None) != (k_norm is None):
        raise ValueError("Q and K are both normalized or neither")
    return q_norm is not None


def shipped() -> list[Shipped]:
    """The configurations of Llama-3-8B, and with normalized heads."""
    return [_shipped("rotate_and_cache", normed=False), _shipped("rotate_and_cache_normed", normed=True), _rotate()]


def _shipped(name: str, *, normed: bool) -> Shipped:
    halves = ("query_ptr", "k_cache_ptr", "v_cache_ptr", "qkv_ptr", "q_norm_ptr", "k_norm_ptr")
    return Shipped(
        name=name,
        kernel=rotate_and_cache_kernel,
        signature=dict.fromkeys(halves, "*bf16") | _TABLES | {"slots_ptr": "*i64"},
        constants=_LLAMA | {"BLOCK_SIZE": 16, "NORMED": normed},
        num_warps=NUM_WARPS,
        num_stages=1,
    )


def _rotate() -> Shipped:
    strides = {"q_stride": "i32", "k_stride": "i32"}
    return Shipped(
        name="rotate",
        kernel=rotate_kernel,
        signature=dict.fromkeys(("q_ptr", "k_ptr", "q_norm_ptr", "k_norm_ptr"), "*bf16") | _TABLES | strides,
        constants=_LLAMA | {"NORMED": False},
        num_warps=NUM_WARPS,
        num_stages=1,
    )


_TABLES = {"positions_ptr": "*i64", "cos_ptr": "*fp32", "sin_ptr": "*fp32", "eps": "fp32"}
_LLAMA = {"HEADS": 32, "KV_HEADS": 8, "DIM": 128, "WIDTH": 64, "TOGETHER": HEADS_TOGETHER}
