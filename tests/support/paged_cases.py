"""Random sequences in a paged cache: fragmented block tables, and rubbish wherever no token is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvferry_kernels import ops, reference

BLOCK = 16


@dataclass(frozen=True)
class PagedCase:
    """Sequences of some context lengths, with a query for every token of each."""

    queries: tuple[Tensor, ...]
    k_cache: Tensor
    v_cache: Tensor
    tables: tuple[Tensor, ...]

    def attend(self, *spans: tuple[int, int, int]) -> list[Tensor]:
        """Run attention on one batch of (sequence, first token, end): the rows of each span."""
        width = max(len(table) for table in self.tables)
        tables = torch.zeros(len(spans), width, dtype=torch.int32)
        for row, (seq, _, _) in enumerate(spans):
            tables[row, : len(self.tables[seq])] = self.tables[seq]
        counts = [end - start for _, start, end in spans]
        starts = torch.tensor([0, *torch.tensor(counts).cumsum(0)], dtype=torch.int32)
        lens = torch.tensor([end for _, _, end in spans], dtype=torch.int32)
        queries = torch.cat([self.queries[seq][start:end] for seq, start, end in spans])
        scale = queries.shape[-1] ** -0.5
        mixed = ops.paged_attention(queries, self.k_cache, self.v_cache, tables, starts, lens, scale)
        return list(mixed.split(counts))

    def whole(self, seq: int) -> Tensor:
        """Run attention for all tokens of one sequence, alone."""
        return self.attend((seq, 0, len(self.queries[seq])))[0]


def paged_case(
    lens: Sequence[int],
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: torch.dtype,
    seed: int = 0,
    rubbish: float = float("nan"),
) -> PagedCase:
    """Make sequences of ``lens`` tokens; blocks lie in random order, one block is nobody's."""
    random = torch.Generator().manual_seed(seed)
    counts = [-(-n // BLOCK) for n in lens]
    blocks = torch.randperm(sum(counts) + 1, generator=random).int()
    pairs = dtype.itemsize == 2
    k_shape, v_shape = ((dim // 2, BLOCK, 2), (BLOCK // 2, dim, 2)) if pairs else ((dim, BLOCK), (BLOCK, dim))
    k = torch.full((len(blocks), kv_heads, *k_shape), rubbish, dtype=dtype)
    v = torch.full((len(blocks), kv_heads, *v_shape), rubbish, dtype=dtype)
    queries, tables = [], []
    for n, table in zip(lens, blocks[:-1].split(counts), strict=True):
        tables.append(table)
        queries.append(torch.randn(n, heads, dim, generator=random).to(dtype))
        token = torch.arange(n)
        slots = table.long()[token // BLOCK] * BLOCK + token % BLOCK
        keys, values = (torch.randn(n, kv_heads, dim, generator=random) for _ in range(2))
        reference.write_cache(k, v, slots, keys, values)
    return PagedCase(tuple(queries), k, v, tuple(tables))
