"""Attention of random small shapes, in each kind of cache and with random features, is right in both kernels."""

import random

import pytest
import torch

from kvferry_kernels.gpu import reference, splits
from kvferry_kernels.gpu.attention import Attention
from kvferry_kernels.gpu.paged_decode import paged_decode
from kvferry_kernels.gpu.paged_prefill import paged_prefill
from kvferry_kernels.gpu.query_tiles import query_tiles
from tests.support.gpu_cases import TOLERANCE_EPS, gpu_case, wrong_eps


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_a_random_batch_are_right(device: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "SPLIT", 64)
    draw = random.Random(seed)
    kv_heads, group, dim = draw.randint(1, 3), draw.randint(1, 9), draw.choice((16, 24, 40, 64, 72, 128))
    heads, dtype = kv_heads * group, draw.choice((torch.float16, torch.bfloat16))
    stored = draw.choice((None, torch.float8_e4m3fn, torch.int8))
    lens = [draw.randint(1, 100) for _ in range(3)]
    case = gpu_case(lens, heads, kv_heads, dim, dtype, device, stored, draw.choice((16, 32)), seed)
    sinks = torch.randn(heads, generator=torch.Generator().manual_seed(seed)).to(device)
    attention = Attention(dim**-0.5, draw.choice((0, 9)), draw.choice((0.0, 3.0)), draw.choice((None, sinks)))
    new = [draw.randint(1, length) for length in lens]
    q = torch.cat([queries[-count:] for queries, count in zip(case.queries, new, strict=True)])
    tables, lengths = case.tables_of(range(3)), case.ints(lens)
    starts = case.ints([0, new[0], new[0] + new[1], sum(new)])
    tiles = query_tiles(new, lens, group, dtype).to(device)
    exact = reference.paged_prefill(q, case.cache, tables, starts, lengths, attention)
    rows = paged_prefill(q, case.cache, tables, starts, lengths, tiles, attention)
    assert wrong_eps(rows, exact) < TOLERANCE_EPS[dtype]
    last = starts[1:].long() - 1
    decoded = paged_decode(q[last], case.cache, tables, lengths, attention)
    assert wrong_eps(decoded, exact[last]) < TOLERANCE_EPS[dtype]
