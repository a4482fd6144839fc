"""What fixes the machine code of an attention kernel, and the shapes that we ship."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import triton
from torch import Tensor

from kvferry_kernels.gpu import card
from kvferry_kernels.gpu.attention import Attention
from kvferry_kernels.gpu.paged_cache import FP8, FP8_BITS, INT8, PLAIN, PagedCache, stored_kind

TILE = 64
"""Tokens whose K and V are loaded and computed at once."""

TILE_BYTES = 1 << 14
"""Bytes of a tile of K at most, in the queries' dtype: shared memory holds two of K and of V."""

MIN_TILE = 16

TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float8_e4m3fn: "*fp8e4nv", torch.int8: "*i8"}
STORED = {PLAIN: "", FP8: ", fp8 cache", FP8_BITS: ", fp8 cache", INT8: ", int8 cache"}


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Numbers of heads and dimensions, dtypes, and what of ``Attention`` is compiled in, on cards of one capability."""

    dtype: torch.dtype
    stored: torch.dtype
    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    capability: tuple[int, int]
    window: int = 0
    soft_cap: float = 0.0
    sinks: bool = False

    @classmethod
    def of(cls, q: Tensor, cache: PagedCache, attention: Attention) -> AttentionShape:
        """Of one call."""
        return cls(
            q.dtype,
            cache.k.dtype,
            q.shape[1],
            cache.kv_heads,
            cache.head_dim,
            cache.block_size,
            card.capability(q.device),
            attention.window,
            attention.soft_cap,
            attention.sinks is not None,
        )

    @property
    def group(self) -> int:
        """Query heads of one KV head."""
        return self.heads // self.kv_heads

    @property
    def width(self) -> int:
        """The head dimension as tiles have it: a power of two."""
        return int(triton.next_power_of_2(self.head_dim))

    @property
    def kind(self) -> int:
        """How numbers of the cache are read."""
        return stored_kind(self.stored, self.capability)

    def constants(self, tile: int = TILE) -> dict[str, object]:
        """What both kernels are compiled with; tiles hold fewer tokens than ``tile`` if so many don't fit."""
        return {
            "KV_HEADS": self.kv_heads,
            "GROUP": self.group,
            "DIM": self.head_dim,
            "WIDTH": self.width,
            "BLOCK": self.block_size,
            "TILE": max(MIN_TILE, min(tile, TILE_BYTES // (self.width * self.dtype.itemsize))),
            "WINDOW": self.window,
            "CAP": self.soft_cap,
            "KIND": self.kind,
        }

    def cache_types(self) -> dict[str, str]:
        """Triton's types of the arguments that hold a cache."""
        stored = "*u8" if self.kind == FP8_BITS else TYPES[self.stored]
        return {"k_cache": stored, "v_cache": stored, "k_scales": "*fp32", "v_scales": "*fp32", "tables": "*i32"}

    def __str__(self) -> str:
        """Name it as tables do."""
        every = ", window, cap and sinks" if self.sinks else ""
        return f"{TYPES[self.dtype][1:]}, {self.head_dim}{STORED[self.kind]}{every}"


def shipped_shapes(architecture: int) -> Iterator[AttentionShape]:
    """Llama-3-8B's (32 heads, 8 of K and V, of 128 numbers) and the same with heads of 64, with each kind of cache."""
    capability = divmod(architecture, 10)
    for dim in (128, 64):
        for stored in (torch.bfloat16, torch.float8_e4m3fn, torch.int8):
            yield AttentionShape(torch.bfloat16, stored, 32, 8, dim, 16, capability)
    llama = AttentionShape(torch.bfloat16, torch.bfloat16, 32, 8, 128, 16, capability)
    yield replace(llama, dtype=torch.float16, stored=torch.float16)
    yield replace(llama, window=4096, soft_cap=50.0, sinks=True)
