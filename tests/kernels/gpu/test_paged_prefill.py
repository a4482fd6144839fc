"""Prefill attention is right for every dtype, cache and feature, and a row depends on its own context alone."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from kvferry_kernels.gpu import card, reference
from kvferry_kernels.gpu.attention import Attention
from kvferry_kernels.gpu.paged_prefill import paged_prefill
from kvferry_kernels.gpu.query_tiles import ROWS, query_tiles
from tests.support.gpu_cases import TOLERANCE_EPS, GpuCase, every_feature, gpu_case, wrong_eps

FEATURES = pytest.mark.parametrize(
    ("dtype", "feature"),
    [*((torch.bfloat16, feature) for feature in range(6)), (torch.float32, 0), (torch.float32, 5)],
    ids=["plain", "window1", "window64", "cap", "sinks", "all", "fp32 plain", "fp32 all"],
)
STORED = pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        (torch.float16, None),
        (torch.float16, torch.float8_e4m3fn),
        (torch.float16, torch.int8),
        (torch.bfloat16, torch.float8_e4m3fn),
        (torch.bfloat16, torch.int8),
        (torch.float32, torch.int8),
    ],
    ids=["fp16", "fp16-fp8", "fp16-int8", "bf16-fp8", "bf16-int8", "fp32-int8"],
)

Span = tuple[int, int, int]
"""A sequence, its first token in a batch, and where those end."""

LENS = (1, 16, 33, 65, 150)
SPANS: tuple[Span, ...] = ((0, 0, 1), (4, 149, 150), (3, 7, 65), (2, 33, 33), (4, 30, 120), (1, 0, 16))


def batch(case: GpuCase, spans: Sequence[Span]) -> tuple[Tensor, Tensor, Tensor, Tensor, list[int], list[int]]:
    counts = [end - start for _, start, end in spans]
    ends = [end for _, _, end in spans]
    starts = case.ints([0, *torch.tensor(counts).cumsum(0).tolist()])
    q = torch.cat([case.queries[seq][start:end] for seq, start, end in spans])
    return q, case.tables_of([seq for seq, _, _ in spans]), starts, case.ints(ends), counts, ends


def prefill(case: GpuCase, spans: Sequence[Span], attention: Attention, idle: int = 0) -> list[Tensor]:
    """The rows of each span."""
    q, tables, starts, lens, counts, ends = batch(case, spans)
    tiles = query_tiles(counts, ends, q.shape[1] // case.cache.kv_heads, q.dtype)
    tiles = torch.cat((tiles, torch.tensor([[-1, 0]] * idle, dtype=torch.int32).reshape(-1, 2))).to(q.device)
    return list(paged_prefill(q, case.cache, tables, starts, lens, tiles, attention).split(counts))


def exact(case: GpuCase, spans: Sequence[Span], attention: Attention) -> Tensor:
    q, tables, starts, lens, _, _ = batch(case, spans)
    return reference.paged_prefill(q, case.cache, tables, starts, lens, attention)


def off(case: GpuCase, spans: Sequence[Span], attention: Attention) -> float:
    return wrong_eps(torch.cat(prefill(case, spans, attention)), exact(case, spans, attention))


@FEATURES
def test_every_row_is_the_softmax_mean_of_its_past(device: str, dtype: torch.dtype, feature: int) -> None:
    case = gpu_case(LENS, 4, 1, 64, dtype, device)
    assert off(case, SPANS, every_feature(4, 64, device)[feature]) < TOLERANCE_EPS[dtype]


@STORED
def test_a_cache_counts_as_the_numbers_it_stands_for(
    device: str, stored: torch.dtype | None, dtype: torch.dtype
) -> None:
    case = gpu_case(LENS, 8, 2, 32, dtype, device, stored)
    assert off(case, SPANS, every_feature(8, 32, device)[5]) < TOLERANCE_EPS[dtype]


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float8_e4m3fn], ids=["bf16", "fp8"])
def test_configurations_for_an_older_card_are_right(
    device: str, stored: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card, "capability", lambda device: (8, 0))
    case = gpu_case(LENS, 8, 2, 32, torch.bfloat16, device, stored)
    assert off(case, SPANS, every_feature(8, 32, device)[5]) < TOLERANCE_EPS[torch.bfloat16]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block_size"),
    [(1, 1, 16, 16), (6, 2, 80, 16), (5, 1, 96, 32), (4, 4, 32, 16), (64, 1, 128, 32), (3, 3, 256, 16)],
)
def test_odd_shapes_are_right_too(device: str, heads: int, kv_heads: int, dim: int, block_size: int) -> None:
    case = gpu_case((1, 20, 70), heads, kv_heads, dim, torch.bfloat16, device, None, block_size, seed=dim)
    spans = ((0, 0, 1), (1, 4, 20), (2, 66, 70))
    assert off(case, spans, every_feature(heads, dim, device)[5]) < TOLERANCE_EPS[torch.bfloat16]


@pytest.mark.parametrize(
    ("stored", "feature"), [(None, 5), (torch.float8_e4m3fn, 0), (torch.int8, 5)], ids=["bf16", "fp8", "int8"]
)
def test_rows_are_bit_equal_alone_in_a_batch_and_in_any_chunks(
    device: str, stored: torch.dtype | None, feature: int
) -> None:
    case = gpu_case(LENS, 6, 2, 32, torch.bfloat16, device, stored)
    attention = every_feature(6, 32, device)[feature]
    whole = prefill(case, [(4, 0, 150)], attention)[0]
    for chunk in (1, 23, 64):
        starts = range(0, 150, chunk) if chunk > 1 else (0, 31, 32, 64)
        spans = [(4, start, min(start + chunk, 150)) for start in starts]
        for (_, start, end), rows in zip(spans, prefill(case, spans, attention), strict=True):
            assert torch.equal(rows, whole[start:end])
    mixed = prefill(case, SPANS, attention, idle=2)
    assert torch.equal(mixed[1], whole[149:])
    assert torch.equal(mixed[4], whole[30:120])


def test_one_token_alone_is_right(device: str) -> None:
    case = gpu_case((1,), 4, 2, 64, torch.bfloat16, device)
    assert off(case, [(0, 0, 1)], every_feature(4, 64, device)[0]) < TOLERANCE_EPS[torch.bfloat16]


def test_a_batch_of_nothing_gives_nothing(device: str) -> None:
    case = gpu_case((20,), 4, 2, 64, torch.bfloat16, device)
    assert prefill(case, [(0, 20, 20)], every_feature(4, 64, device)[0])[0].shape == (0, 4, 64)


@pytest.mark.parametrize("group", [1, 3, 8, 64])
def test_tiles_hold_each_query_once_at_fixed_positions_the_longest_first(group: int) -> None:
    new, lens = [1, 0, 70, 1, 33, 200], [500, 90, 70, 1, 100, 1000]
    size = ROWS // (4 if group == 3 else group)
    tiles = query_tiles(new, lens, group, torch.bfloat16).tolist()
    held = [
        (seq, position)
        for seq, first in tiles
        for position in range(max(first, lens[seq] - new[seq]), min(first + size, lens[seq]))
    ]
    assert sorted(held) == [(s, p) for s in range(len(new)) for p in range(lens[s] - new[s], lens[s])]
    assert all(first % size == 0 for _, first in tiles)
    assert [first for _, first in tiles] == sorted((first for _, first in tiles), reverse=True)
