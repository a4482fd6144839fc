"""Writes new tokens' K and V into a layer's blocks, in the numbers that the cache stores."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvferry_kernels.gpu import paged_cache
from kvferry_kernels.gpu.attention import check_flat
from kvferry_kernels.gpu.numbers import to_fp8_bits, to_int8
from kvferry_kernels.gpu.operand import FLOATS
from kvferry_kernels.gpu.paged_cache import PagedCache
from kvferry_kernels.gpu.shipped import FUSED, Shipped

HEADS = 8
"""Heads of one program: 1,024 numbers of K and of V at the usual dimension, eight for each thread."""

WARPS = 4

FP8_BITS = tl.constexpr(paged_cache.FP8_BITS)
INT8 = tl.constexpr(paged_cache.INT8)


@triton.jit
def put(new, cache, scales, heads, places, wanted, DIM: tl.constexpr, WIDTH: tl.constexpr, KIND: tl.constexpr):
    """Store one token's heads at ``places``, which count rows of one token and head."""
    dims = tl.arange(0, WIDTH)
    is_number = wanted[:, None] & (dims[None, :] < DIM)
    numbers = tl.load(new + heads[:, None] * DIM + dims, mask=is_number, other=0.0)
    at = places[:, None] * DIM + dims
    if KIND == INT8:
        whole, row_scales = to_int8(numbers.to(tl.float32))
        tl.store(cache + at, whole, mask=is_number)
        tl.store(scales + places, row_scales, mask=wanted)
    elif KIND == FP8_BITS:
        row_scales = tl.load(scales + heads, mask=wanted, other=1.0)
        scaled = tl.div_rn(numbers.to(tl.float32), tl.broadcast_to(row_scales[:, None], numbers.shape))
        tl.store(cache + at, to_fp8_bits(scaled), mask=is_number)
    else:
        tl.store(cache + at, numbers, mask=is_number)


@triton.jit(do_not_specialize=["num_slots"])
def write_kernel(
    k,
    v,
    k_cache,
    v_cache,
    k_scales,
    v_scales,
    slots,
    k_stride,
    v_stride,
    num_slots,
    KV_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    KIND: tl.constexpr,
):
    """One token, HEADS of its heads."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if (slot < 0) | (slot >= num_slots):
        return
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    wanted = heads < KV_HEADS
    places = (slot // BLOCK * KV_HEADS + heads) * BLOCK + slot % BLOCK
    put(k + token * k_stride, k_cache, k_scales, heads, places, wanted, DIM, WIDTH, KIND)
    put(v + token * v_stride, v_cache, v_scales, heads, places, wanted, DIM, WIDTH, KIND)


def write_cache(k: Tensor, v: Tensor, cache: PagedCache, slots: Tensor) -> None:
    """Store tokens' K and V in their slots, each rounded once.

    ``k``, ``v`` ``[num_tokens, kv_heads, head_dim]``, bfloat16, float16 or float32, the cache's own dtype if it isn't
    of 8 bits; heads and numbers are contiguous, tokens may lie apart, as in a slice of Q, K and V together. ``slots``
    int64 ``[num_tokens]``: block * block size + offset, none twice; a token whose slot is negative, or behind the
    cache's end, isn't stored.

    In float8_e4m3fn numbers beyond 448 * scale become that, NaN stays NaN. In int8 a token and head's largest number
    becomes 127, and its scale is written too; it is NaN if not all numbers are finite. ValueError for shapes, dtypes
    or devices that don't fit.
    """
    for name, new in (("K", k), ("V", v)):
        if new.shape != (len(slots), cache.kv_heads, cache.head_dim) or new.stride()[1:] != (cache.head_dim, 1):
            raise ValueError(f"{name} of shape {list(new.shape)}, strides {new.stride()}, for {len(slots)} slots")
        if new.dtype not in FLOATS or (cache.k.dtype in FLOATS and new.dtype != cache.k.dtype) or new.dtype != k.dtype:
            raise ValueError(f"{name} of {new.dtype} for a cache of {cache.k.dtype}")
        if new.device != cache.k.device:
            raise ValueError(f"{name} on {new.device}, the cache on {cache.k.device}")
    check_flat("slots", slots, torch.int64, cache)
    if len(slots) == 0:
        return
    write_kernel[len(slots), triton.cdiv(cache.kv_heads, HEADS)](
        k,
        v,
        *_bits(cache),
        cache.k_scales,
        cache.v_scales,
        slots,
        k.stride(0),
        v.stride(0),
        cache.num_blocks * cache.block_size,
        **_constants(cache.kv_heads, cache.head_dim, cache.block_size, cache.k.dtype),
        num_warps=WARPS,
        **FUSED,
    )


def _bits(cache: PagedCache) -> tuple[Tensor, Tensor]:
    """K and V as they are written: e4m3 always as bits, for rounding to it is ours on every card."""
    if cache.k.dtype == torch.float8_e4m3fn:
        return cache.k.view(torch.uint8), cache.v.view(torch.uint8)
    return cache.k, cache.v


def _constants(kv_heads: int, dim: int, block_size: int, stored: torch.dtype) -> dict[str, object]:
    kinds = {torch.float8_e4m3fn: paged_cache.FP8_BITS, torch.int8: paged_cache.INT8}
    return {
        "KV_HEADS": kv_heads,
        "HEADS": HEADS,
        "DIM": dim,
        "WIDTH": triton.next_power_of_2(dim),
        "BLOCK": block_size,
        "KIND": kinds.get(stored, paged_cache.PLAIN),
    }


def shipped() -> list[Shipped]:
    """Llama-3-8B's heads into each kind of cache."""
    whole = {"k_stride": "i32:16", "v_stride": "i32:16", "num_slots": "i32"}
    types = {"k": "*bf16", "v": "*bf16", "k_scales": "*fp32", "v_scales": "*fp32", "slots": "*i64", **whole}
    kinds = {
        torch.bfloat16: ("", "*bf16"),
        torch.float8_e4m3fn: (", fp8 cache", "*u8"),
        torch.int8: (", int8 cache", "*i8"),
    }
    return [
        Shipped(
            f"write, bf16, 128{name}",
            write_kernel,
            {**types, "k_cache": pointer, "v_cache": pointer},
            _constants(8, 128, 16, stored),
            WARPS,
            1,
        )
        for stored, (name, pointer) in kinds.items()
    ]
