"""Random sequences in a paged cache, made on the device: blocks lie scattered, and NaN where no token is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_check.bench import Bench
from kvferry_kernels.gpu.attention import Attention
from kvferry_kernels.gpu.operand import FLOATS
from kvferry_kernels.gpu.paged_cache import PagedCache
from kvferry_kernels.gpu.paged_decode import paged_decode
from kvferry_kernels.gpu.paged_prefill import paged_prefill
from kvferry_kernels.gpu.query_tiles import query_tiles

NOBODYS = -(10**6)
"""A block id behind a table's end."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Of queries, of K and V, and a head's numbers."""

    queries: int
    kv: int
    dim: int
    block: int = 16

    def __str__(self) -> str:
        """As the table has it."""
        return f"heads {self.queries}/{self.kv} of {self.dim}"


LLAMA, TINY = Heads(32, 8, 128), Heads(8, 2, 16)
"""Llama-3-8B's, and what the interpreter has time for."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """A batch with its cache; each sequence's ``query_lens`` last tokens ask."""

    q: Tensor
    cache: PagedCache
    tables: Tensor
    query_starts: Tensor
    context_lens: Tensor
    tiles: Tensor
    longest: int

    def decode(self, attention: Attention) -> Tensor:
        """Attention of one token each."""
        return paged_decode(self.q, self.cache, self.tables, self.context_lens, attention, self.longest)

    def prefill(self, attention: Attention) -> Tensor:
        """Attention of chunks."""
        batch = (self.tables, self.query_starts, self.context_lens, self.tiles)
        return paged_prefill(self.q, self.cache, *batch, attention)


def sequences(
    bench: Bench,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    heads: Heads,
    dtype: torch.dtype,
    stored: torch.dtype,
) -> Sequences:
    """Make them, ``context_lens`` with their queries."""
    device = bench.device
    counts = [-(-length // heads.block) for length in context_lens]
    ids = torch.randperm(sum(counts) + 1, generator=torch.Generator().manual_seed(sum(context_lens)))
    cache = random_cache(bench, len(ids), heads, stored)
    tables = torch.full((len(counts), max(counts)), NOBODYS, dtype=torch.int32)
    for row, blocks in enumerate(ids[:-1].split(counts)):
        tables[row, : len(blocks)] = blocks
        used = context_lens[row] % heads.block
        if used and stored in FLOATS:
            for half in (cache.k, cache.v):
                half[int(blocks[-1]), :, used:] = torch.nan
    starts = torch.tensor([0, *torch.tensor(query_lens).cumsum(0).tolist()], dtype=torch.int32)
    return Sequences(
        bench.random(sum(query_lens), heads.queries, heads.dim, dtype=dtype),
        cache,
        tables.to(device),
        starts.to(device),
        torch.tensor(context_lens, dtype=torch.int32, device=device),
        query_tiles(query_lens, context_lens, heads.queries // heads.kv, dtype).to(device),
        max(context_lens),
    )


def random_cache(bench: Bench, num_blocks: int, heads: Heads, stored: torch.dtype) -> PagedCache:
    """A cache full of numbers near to 1, however they are stored."""
    shape = (num_blocks, heads.kv, heads.block, heads.dim)
    k, v = (_stored(bench, shape, stored, seed) for seed in (1, 2))
    if stored == torch.int8:
        scales = torch.rand(2, *shape[:3], device=bench.device) * 0.02 + 0.01
        return PagedCache(k, v, scales[0], scales[1])
    if stored == torch.float8_e4m3fn:
        return PagedCache(k, v, *(torch.linspace(0.5, most, heads.kv, device=bench.device) for most in (1.5, 1.2)))
    return PagedCache(k, v)


def empty_like(cache: PagedCache) -> PagedCache:
    """A cache of zeros with the same scales of heads."""
    scales = [
        None if scale is None else torch.zeros_like(scale) if cache.k.dtype == torch.int8 else scale
        for scale in (cache.k_scales, cache.v_scales)
    ]
    return PagedCache(torch.zeros_like(cache.k), torch.zeros_like(cache.v), *scales)


def kv_bytes(num_tokens: int, heads: Heads, stored: torch.dtype) -> int:
    """Bytes of so many tokens' K and V in one layer, scales of each token included."""
    scale_bytes = torch.float32.itemsize if stored == torch.int8 else 0
    return 2 * num_tokens * heads.kv * (heads.dim * stored.itemsize + scale_bytes)


def _stored(bench: Bench, shape: tuple[int, ...], stored: torch.dtype, seed: int) -> Tensor:
    if stored == torch.int8:
        return torch.randint(-127, 128, shape, dtype=stored, device=bench.device)
    return bench.random(*shape, dtype=stored, seed=seed)
