"""Rotary position embedding of Q and K, and K's and V's way into the cache, in one pass over what a product gave.

Sources: see ``rotary``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvferry_kernels.gpu.operand import FLOATS, check
from kvferry_kernels.gpu.rotary import HEADS_TOGETHER, NUM_WARPS, check_tables, turned
from kvferry_kernels.gpu.shipped import FUSED, Shipped


@triton.jit
def rotate_and_cache_kernel(
    query_ptr,
    k_cache_ptr,
    v_cache_ptr,
    qkv_ptr,
    q_norm_ptr,
    k_norm_ptr,
    positions_ptr,
    slots_ptr,
    cos_ptr,
    sin_ptr,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TOGETHER: tl.constexpr,
    NORMED: tl.constexpr,
):
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
        low, high = turned(first, inside, q_norm_ptr, cos_ptr, sin_ptr, position, eps, DIM, WIDTH, NORMED)
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
        low, high = turned(first, inside, k_norm_ptr, cos_ptr, sin_ptr, position, eps, DIM, WIDTH, NORMED)
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
    block * block_size + offset, none twice; what has a negative one isn't written.
    The others, and errors, as for ``rotary.rotate``.
    """
    num_tokens = len(qkv)
    _, kv_heads, block_size, dim = k_cache.shape
    heads = qkv.shape[1] // dim - 2 * kv_heads
    is_normed = check_tables(num_tokens, dim, positions, cos, sin, q_norm, k_norm, qkv.device)
    check("QKV", qkv, (num_tokens, (heads + 2 * kv_heads) * dim), FLOATS, qkv.device)
    check("slots", slots, (num_tokens,), (torch.int64,), qkv.device)
    for name, cache in (("K", k_cache), ("V", v_cache)):
        check(name, cache, k_cache.shape, (qkv.dtype,), qkv.device)
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
        NORMED=is_normed,
        num_warps=NUM_WARPS,
        num_stages=1,
        **FUSED,
    )
    return query


def shipped() -> list[Shipped]:
    """The configurations of Llama-3-8B, and with normalized heads."""
    return [_shipped("rotate_and_cache", normed=False), _shipped("rotate_and_cache, normed", normed=True)]


def _shipped(name: str, *, normed: bool) -> Shipped:
    types = {
        "*bf16": ("query_ptr", "k_cache_ptr", "v_cache_ptr", "qkv_ptr", "q_norm_ptr", "k_norm_ptr"),
        "*fp32": ("cos_ptr", "sin_ptr"),
        "*i64": ("positions_ptr", "slots_ptr"),
        "fp32": ("eps",),
    }
    return Shipped(
        name=name,
        kernel=rotate_and_cache_kernel,
        signature={argument: kind for kind, arguments in types.items() for argument in arguments},
        constants={
            "HEADS": 32,
            "KV_HEADS": 8,
            "DIM": 128,
            "WIDTH": 64,
            "BLOCK_SIZE": 16,
            "TOGETHER": HEADS_TOGETHER,
            "NORMED": normed,
        },
        num_warps=NUM_WARPS,
        num_stages=1,
    )
