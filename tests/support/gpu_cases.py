"""Random sequences in a GPU's paged cache: fragmented block tables, and NaN wherever no token is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvferry_kernels.gpu import reference
from kvferry_kernels.gpu.attention import Attention
from kvferry_kernels.gpu.paged_cache import PagedCache

NAN_BITS = 0x7F
"""A NaN of e4m3."""


@dataclass(frozen=True)
class GpuCase:
    """Sequences of some context lengths, with a query for every token of each."""

    cache: PagedCache
    tables: tuple[Tensor, ...]
    queries: tuple[Tensor, ...]

    def tables_of(self, seqs: Sequence[int], width: int = 0) -> Tensor:
        """Block tables, ids that no block has behind their ends."""
        width = max([width, 1, *(len(self.tables[seq]) for seq in seqs)])
        tables = torch.full((len(seqs), width), -(10**6), dtype=torch.int32, device=self.cache.k.device)
        for row, seq in enumerate(seqs):
            tables[row, : len(self.tables[seq])] = self.tables[seq]
        return tables

    def ints(self, numbers: Sequence[int]) -> Tensor:
        """Lengths as kernels take them."""
        return torch.tensor(numbers, dtype=torch.int32, device=self.cache.k.device)


def empty_cache(
    num_blocks: int, kv_heads: int, dim: int, stored: torch.dtype, device: str, block_size: int = 16
) -> PagedCache:
    """A cache of NaN."""
    shape = (num_blocks, kv_heads, block_size, dim)
    if stored == torch.int8:
        k, v = (torch.full(shape, 127, dtype=stored, device=device) for _ in range(2))
        k_scales, v_scales = (torch.full(shape[:3], torch.nan, device=device) for _ in range(2))
        return PagedCache(k, v, k_scales, v_scales)
    if stored == torch.float8_e4m3fn:
        k, v = (torch.full(shape, NAN_BITS, dtype=torch.uint8, device=device).view(stored) for _ in range(2))
        return PagedCache(k, v, *(torch.linspace(0.01, scale, kv_heads, device=device) for scale in (0.03, 0.02)))
    k, v = (torch.full(shape, torch.nan, dtype=stored, device=device) for _ in range(2))
    return PagedCache(k, v)


def gpu_case(
    lens: Sequence[int],
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: torch.dtype,
    device: str,
    stored: torch.dtype | None = None,
    block_size: int = 16,
    seed: int = 0,
) -> GpuCase:
    """Make sequences of ``lens`` tokens; blocks lie in random order, one block is nobody's."""
    random = torch.Generator().manual_seed(seed)
    counts = [-(-n // block_size) for n in lens]
    blocks = torch.randperm(sum(counts) + 1, generator=random).int()
    cache = empty_cache(len(blocks), kv_heads, dim, stored or dtype, device, block_size)
    tables, queries = blocks[:-1].split(counts), []
    for n, table in zip(lens, tables, strict=True):
        tokens = torch.arange(n)
        slots = table.long()[tokens // block_size] * block_size + tokens % block_size
        q, k, v = (
            torch.randn(n, size, dim, generator=random).to(device, dtype) for size in (heads, kv_heads, kv_heads)
        )
        reference.write_cache(k, v, cache, slots)
        queries.append(q)
    return GpuCase(cache, tuple(table.to(device) for table in tables), tuple(queries))


def every_feature(heads: int, dim: int, device: str) -> list[Attention]:
    """Plain attention, each feature, and all at once; windows end within a tile, at its border and before one token."""
    sinks = torch.linspace(-2.0, 3.0, heads, device=device)
    scale = dim**-0.5
    return [
        Attention(scale),
        Attention(scale, window=1),
        Attention(scale, window=64),
        Attention(scale, soft_cap=2.0),
        Attention(scale, sinks=sinks),
        Attention(scale, window=37, soft_cap=5.0, sinks=sinks),
    ]


BFLOAT16_EPS = 1.0 if torch.cuda.is_available() else 2.0
"""The interpreter doesn't round to bfloat16, it cuts off."""

TOLERANCE_EPS = {torch.float32: 10.0, torch.float16: 1.0, torch.bfloat16: BFLOAT16_EPS}
"""How far a row of attention may be off, in eps of its largest number: half of one is the last rounding, the rest is
that of weights before the second product. In float32 it is that of scores, which are several times larger than 1."""


def wrong_eps(out: Tensor, exact: Tensor) -> float:
    """How far rows ``[..., heads, head_dim]`` are off at most, in eps of each row's largest number."""
    assert not out.isnan().any()
    off = (out.double() - exact).abs().amax((-1, -2)) / exact.abs().amax((-1, -2)).clamp(min=1e-30)
    return float(off.max()) / torch.finfo(out.dtype).eps
