"""Decode attention is right for every dtype, cache and feature, and a row depends on its own context alone."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvferry_kernels.gpu import card, paged_decode, reference
from kvferry_kernels.gpu.attention import Attention
from tests.support.gpu_cases import TOLERANCE_EPS, GpuCase, every_feature, gpu_case, wrong_eps

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["fp32", "fp16", "bf16"])
WHOLE = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
FEATURES = pytest.mark.parametrize("feature", range(6), ids=["plain", "window1", "window64", "cap", "sinks", "all"])

SPLIT = 128
"""Tests have short contexts of many splits: the interpreter is slow."""

LENS = (0, 1, 16, 17, 64, SPLIT - 1, SPLIT, SPLIT + 1, 2 * SPLIT + 70)
FEW = (1, 3, 8)
SEQS = range(len(LENS))


@pytest.fixture(autouse=True)
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_decode, "SPLIT", SPLIT)


def last_rows(case: GpuCase, seqs: Sequence[int]) -> Tensor:
    """The query of each sequence's last token; of an empty one anything."""
    return torch.cat([case.queries[seq if len(case.queries[seq]) else -1][-1:] for seq in seqs])


def decode(case: GpuCase, seqs: Sequence[int], attention: Attention, width: int = 0, most: int | None = None) -> Tensor:
    lens = case.ints([len(case.queries[seq]) for seq in seqs])
    tables = case.tables_of(seqs, width)
    return paged_decode.paged_decode(last_rows(case, seqs), case.cache, tables, lens, attention, most)


def exact(case: GpuCase, seqs: Sequence[int], attention: Attention) -> Tensor:
    lens = case.ints([len(case.queries[seq]) for seq in seqs])
    return reference.paged_decode(last_rows(case, seqs), case.cache, case.tables_of(seqs), lens, attention)


@WHOLE
@FEATURES
def test_every_row_is_the_softmax_mean_of_its_context(device: str, dtype: torch.dtype, feature: int) -> None:
    case = gpu_case(LENS, 4, 1, 64, dtype, device)
    attention = every_feature(4, 64, device)[feature]
    out = decode(case, SEQS, attention)
    assert wrong_eps(out, exact(case, SEQS, attention)) < TOLERANCE_EPS[dtype]
    assert not out[0].any()


@DTYPES
@pytest.mark.parametrize("stored", [None, torch.float8_e4m3fn, torch.int8], ids=["plain", "fp8", "int8"])
def test_a_cache_counts_as_the_numbers_it_stands_for(
    device: str, stored: torch.dtype | None, dtype: torch.dtype
) -> None:
    case = gpu_case(LENS, 8, 2, 64, dtype, device, stored)
    attention = every_feature(8, 64, device)[5]
    assert wrong_eps(decode(case, FEW, attention), exact(case, FEW, attention)) < TOLERANCE_EPS[dtype]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_a_card_that_cant_convert_e4m3_gets_the_same_numbers(
    device: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = gpu_case(LENS, 8, 2, 64, dtype, device, torch.float8_e4m3fn)
    attention = every_feature(8, 64, device)[0]
    out = decode(case, FEW, attention)
    monkeypatch.setattr(card, "capability", lambda device: (8, 0))
    assert torch.equal(decode(case, FEW, attention), out)


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
    monkeypatch.setattr(paged_decode, "SPLIT", 64)
    case = gpu_case((64 * (paged_decode.MERGE + 3),), 2, 1, 16, torch.float32, device)
    for attention in (every_feature(2, 16, device)[0], Attention(0.25, window=200)):
        assert wrong_eps(decode(case, [0], attention), exact(case, [0], attention)) < TOLERANCE_EPS[torch.float32]


def test_splits_of_the_usual_size_are_right(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert paged_decode.SPLIT > SPLIT
    case = gpu_case((paged_decode.SPLIT, paged_decode.SPLIT + 1), 2, 1, 16, torch.bfloat16, device)
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
    for seq in FEW:
        assert torch.equal(decode(case, [seq], attention)[0], together[seq])
    backwards = decode(case, FEW[::-1], attention, width=90)  # more splits, of which none has a token
    assert torch.equal(backwards.flip(0), together[list(FEW)])
    assert torch.equal(decode(case, FEW, attention, width=90, most=max(LENS)), together[list(FEW)])


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
    nothing = paged_decode.paged_decode(case.queries[0], case.cache, case.tables_of([1])[:0], case.ints([]), attention)
    assert nothing.shape == (0, 4, 32)
