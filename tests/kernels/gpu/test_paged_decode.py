"""Decode attention is right for every dtype, cache and feature, and a row depends on its own context alone."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvferry_kernels.gpu import card, reference, splits
from kvferry_kernels.gpu.attention import Attention
from kvferry_kernels.gpu.paged_cache import PagedCache
from kvferry_kernels.gpu.paged_decode import paged_decode
from tests.support.gpu_cases import NAN_BITS, TOLERANCE_EPS, GpuCase, every_feature, gpu_case, wrong_eps

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

E4M3 = torch.float8_e4m3fn

SPLIT = 128
"""Tests have short contexts of many splits: the interpreter is slow."""

LENS = (0, 1, 17, SPLIT, 2 * SPLIT + 70)
SEQS = range(len(LENS))


@pytest.fixture(autouse=True)
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "SPLIT", SPLIT)


def last_rows(case: GpuCase, seqs: Sequence[int]) -> Tensor:
    """The query of each sequence's last token; of an empty one anything."""
    return torch.cat([case.queries[seq if len(case.queries[seq]) else -1][-1:] for seq in seqs])


def decode(case: GpuCase, seqs: Sequence[int], attention: Attention, width: int = 0, most: int | None = None) -> Tensor:
    lens = case.ints([len(case.queries[seq]) for seq in seqs])
    tables = case.tables_of(seqs, width)
    return paged_decode(last_rows(case, seqs), case.cache, tables, lens, attention, most)


def exact(case: GpuCase, seqs: Sequence[int], attention: Attention) -> Tensor:
    lens = case.ints([len(case.queries[seq]) for seq in seqs])
    return reference.paged_decode(last_rows(case, seqs), case.cache, case.tables_of(seqs), lens, attention)


@FEATURES
def test_every_row_is_the_softmax_mean_of_its_context(device: str, dtype: torch.dtype, feature: int) -> None:
    case = gpu_case(LENS, 2, 1, 64, dtype, device)
    attention = every_feature(2, 64, device)[feature]
    out = decode(case, SEQS, attention)
    assert wrong_eps(out, exact(case, SEQS, attention)) < TOLERANCE_EPS[dtype]
    assert not out[0].any()


def test_contexts_may_end_anywhere_in_a_tile_and_a_split(device: str) -> None:
    lens = (15, 16, 63, 64, 65, SPLIT - 1, SPLIT + 1)
    case = gpu_case(lens, 1, 1, 16, torch.bfloat16, device)
    attention, seqs = every_feature(1, 16, device)[0], range(len(lens))
    assert wrong_eps(decode(case, seqs, attention), exact(case, seqs, attention)) < TOLERANCE_EPS[torch.bfloat16]


@STORED
def test_a_cache_counts_as_the_numbers_it_stands_for(
    device: str, stored: torch.dtype | None, dtype: torch.dtype
) -> None:
    case = gpu_case(LENS[1:], 4, 2, 64, dtype, device, stored)
    attention = every_feature(4, 64, device)[5]
    assert wrong_eps(decode(case, range(4), attention), exact(case, range(4), attention)) < TOLERANCE_EPS[dtype]


@pytest.mark.parametrize("capability", [(9, 0), (8, 0)], ids=["converting", "not converting"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=["fp16", "bf16", "fp32"])
def test_each_number_of_e4m3_is_read_as_it_is(
    device: str, dtype: torch.dtype, capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(card, "capability", lambda device: capability)
    every = torch.arange(256, dtype=torch.uint8, device=device)
    every[(every & NAN_BITS) == NAN_BITS] = 0
    blocks = torch.zeros(4, 1, 16, 64, dtype=torch.uint8, device=device)
    blocks[:, 0, 0] = every.view(4, 64)
    one = torch.ones(1, device=device)
    cache = PagedCache(torch.zeros_like(blocks).view(E4M3), blocks.view(E4M3), one, one)
    tables = torch.arange(4, dtype=torch.int32, device=device)[:, None]
    lens, q = torch.ones_like(tables[:, 0]), torch.zeros(4, 1, 64, dtype=dtype, device=device)
    out = paged_decode(q, cache, tables, lens, Attention(1.0))  # a context of one token: its V
    assert torch.equal(out.flatten().float(), every.view(E4M3).float())


def test_a_card_that_cant_convert_e4m3_attends_as_well(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "capability", lambda device: (8, 0))
    case = gpu_case(LENS[1:], 4, 2, 64, torch.bfloat16, device, E4M3)
    attention = every_feature(4, 64, device)[0]
    out = decode(case, range(4), attention)
    assert wrong_eps(out, exact(case, range(4), attention)) < TOLERANCE_EPS[torch.bfloat16]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block_size"),
    [(1, 1, 16, 16), (6, 2, 80, 16), (5, 1, 96, 32), (8, 8, 32, 16), (32, 1, 128, 32), (3, 3, 256, 16)],
)
def test_odd_shapes_are_right_too(device: str, heads: int, kv_heads: int, dim: int, block_size: int) -> None:
    case = gpu_case((1, 33, SPLIT + 3), heads, kv_heads, dim, torch.bfloat16, device, None, block_size, seed=dim)
    attention = every_feature(heads, dim, device)[5]
    assert (
        wrong_eps(decode(case, range(3), attention), exact(case, range(3), attention)) < TOLERANCE_EPS[torch.bfloat16]
    )


def test_many_splits_are_put_together_in_several_turns(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "SPLIT", 64)
    case = gpu_case((64 * (splits.MERGE + 3),), 2, 1, 16, torch.float32, device)
    for attention in (every_feature(2, 16, device)[0], Attention(0.25, window=200)):
        assert wrong_eps(decode(case, [0], attention), exact(case, [0], attention)) < TOLERANCE_EPS[torch.float32]


def test_splits_of_the_usual_size_are_right(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert splits.SPLIT > SPLIT
    case = gpu_case((splits.SPLIT, splits.SPLIT + 1), 2, 1, 16, torch.bfloat16, device)
    attention = every_feature(2, 16, device)[0]
    assert (
        wrong_eps(decode(case, range(2), attention), exact(case, range(2), attention)) < TOLERANCE_EPS[torch.bfloat16]
    )


@pytest.mark.parametrize(
    ("stored", "feature"), [(None, 5), (torch.float8_e4m3fn, 0), (torch.int8, 5)], ids=["bf16", "fp8", "int8"]
)
def test_rows_are_bit_equal_alone_and_in_any_batch(device: str, stored: torch.dtype | None, feature: int) -> None:
    case = gpu_case(LENS, 6, 2, 32, torch.bfloat16, device, stored)
    attention = every_feature(6, 32, device)[feature]
    together = decode(case, SEQS, attention)
    for seq in SEQS:
        assert torch.equal(decode(case, [seq], attention)[0], together[seq])
    backwards = decode(case, SEQS[::-1], attention, width=90)  # more splits, of which none has a token
    assert torch.equal(backwards.flip(0), together)
    assert torch.equal(decode(case, SEQS[2:], attention, width=90, most=max(LENS)), together[2:])


def test_a_row_is_bit_equal_wherever_its_blocks_lie(device: str) -> None:
    case = gpu_case((150, 40), 4, 2, 32, torch.bfloat16, device)
    attention = every_feature(4, 32, device)[5]
    order = torch.randperm(case.cache.num_blocks, generator=torch.Generator().manual_seed(1)).to(device)
    moved = replace(case.cache, k=case.cache.k[order], v=case.cache.v[order])
    elsewhere = tuple(order.argsort()[table.long()].int() for table in case.tables)
    assert torch.equal(
        decode(GpuCase(moved, elsewhere, case.queries), [0, 1], attention), decode(case, [0, 1], attention)
    )


def test_batches_of_nothing_give_nothing(device: str) -> None:
    case = gpu_case((0, 5), 4, 2, 32, torch.float16, device)
    attention = every_feature(4, 32, device)[4]
    assert not decode(case, [0, 0], attention).any()
    nothing = paged_decode(case.queries[0], case.cache, case.tables_of([1])[:0], case.ints([]), attention)
    assert nothing.shape == (0, 4, 32)
