"""Paged attention is right, and a row's bits depend on its own context alone."""

import pytest
import torch
from torch import Tensor

from kvferry_kernels import ops, reference
from tests.support.paged_cases import PagedCase, paged_case

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 0.02}
LENS = (1, 15, 16, 17, 63, 64, 65, 150, 203)


def exact(case: PagedCase, seq: int) -> Tensor:
    """Attention of one sequence in float64, from the definition."""
    queries = case.queries[seq].double()
    n, heads, dim = queries.shape
    table = case.tables[seq].long()
    keys = reference.in_order_k(case.k_cache[table]).permute(0, 3, 1, 2).flatten(0, 1)[:n].double()
    values = reference.in_order_v(case.v_cache[table]).permute(0, 2, 1, 3).flatten(0, 1)[:n].double()
    group = heads // keys.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", queries, keys) * dim**-0.5
    causal = torch.ones(n, n).tril().bool()
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~causal, -torch.inf).softmax(-1), values)


@DTYPES
@pytest.mark.parametrize("dim", [64, 80, 96, 128])
@pytest.mark.parametrize("group", [1, 3, 4, 8])
def test_every_row_is_the_softmax_mean_of_its_own_past(kernels: str, dtype: torch.dtype, dim: int, group: int) -> None:
    case = paged_case((1, 17, 70), group * 2, 2, dim, dtype, seed=dim + group)
    for seq in range(3):
        wrong = (case.whole(seq).double() - exact(case, seq)).abs().max()
        assert wrong < TOLERANCE[dtype]


@DTYPES
def test_rows_are_bit_equal_alone_in_a_batch_and_in_any_chunks(kernels: str, dtype: torch.dtype) -> None:
    case = paged_case(LENS, 9, 3, 64, dtype)
    alone = [case.whole(seq) for seq in range(len(LENS))]
    together = case.attend(*((seq, 0, n) for seq, n in enumerate(LENS)))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
    for chunk in (1, 7, 16, 64, 100):
        last = len(LENS) - 1
        starts = range(0, LENS[last], chunk)
        parts = [case.attend((last, s, min(s + chunk, LENS[last])))[0] for s in starts]
        assert torch.equal(torch.cat(parts), alone[last])
    mixed = case.attend((8, 202, 203), (7, 33, 150), (4, 62, 63), (8, 0, 5))
    spans = (alone[8][202:], alone[7][33:], alone[4][62:], alone[8][:5])
    assert all(torch.equal(a, b) for a, b in zip(mixed, spans, strict=True))


@DTYPES
@pytest.mark.parametrize(("group", "dim"), [(1, 80), (4, 96), (8, 128), (40, 64)])
def test_other_shapes_are_bit_equal_in_chunks_too(kernels: str, dtype: torch.dtype, group: int, dim: int) -> None:
    case = paged_case((40, 90), group, 1, dim, dtype)
    whole = case.whole(1)
    parts = [case.attend((1, s, min(s + 13, 90)), (0, s % 40, 40))[0] for s in range(0, 90, 13)]
    assert torch.equal(torch.cat(parts), whole)


@DTYPES
def test_thread_count_changes_no_bit(kernels: str, dtype: torch.dtype, threads: None) -> None:
    case = paged_case(LENS, 9, 3, 64, dtype)
    spans = [(seq, 0, n) for seq, n in enumerate(LENS)]
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(torch.cat(case.attend(*spans)))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@DTYPES
def test_rubbish_behind_the_context_has_no_influence(kernels: str, dtype: torch.dtype) -> None:
    clean = paged_case(LENS, 9, 3, 64, dtype, rubbish=0.0)
    for rubbish in (float("nan"), float("inf"), 3e38):
        case = paged_case(LENS, 9, 3, 64, dtype, rubbish=rubbish)
        for seq in range(len(LENS)):
            assert torch.equal(case.whole(seq), clean.whole(seq))


@DTYPES
@pytest.mark.parametrize("shared", [0, 64, 130, 200])
def test_contexts_that_begin_with_the_same_blocks_change_no_bit(kernels: str, dtype: torch.dtype, shared: int) -> None:
    """Twelve sequences of one group share what they can; one in the middle shares nothing."""
    one = paged_case((203, 90), 9, 3, 64, dtype)
    lens = [shared + 1 + own for own in (0, 3, 70, 1, 0, 16, 63, 64, 65, 2, 2, 0)]
    case = paged_case([max(1, n - shared) for n in lens], 9, 3, 64, dtype)
    whole, begun = shared // 16, shared % 16 > 0
    tables, queries = [], []
    k_cache = torch.cat((case.k_cache, one.k_cache))
    v_cache = torch.cat((case.v_cache, one.v_cache))
    first = len(case.k_cache)
    for table, query in zip(case.tables, case.queries, strict=True):
        lead = one.tables[0][: whole + begun] + first
        tables.append(torch.cat((lead[:whole], table, lead[whole:])))
        queries.append(torch.cat((torch.zeros(whole * 16, 9, 64, dtype=dtype), query)))
    tables.insert(5, one.tables[1] + first)
    queries.insert(5, one.queries[1])
    both = PagedCase(tuple(queries), k_cache, v_cache, tuple(tables))
    spans = [(seq, len(query) - 1, len(query)) for seq, query in enumerate(both.queries)]
    together = both.attend(*spans)
    assert all(torch.equal(both.attend(span)[0], row) for span, row in zip(spans, together, strict=True))


@DTYPES
def test_block_places_change_no_bit(kernels: str, dtype: torch.dtype) -> None:
    case = paged_case((203,), 6, 2, 64, dtype)
    order = torch.randperm(len(case.k_cache), generator=torch.Generator().manual_seed(9))
    moved = PagedCase(
        case.queries,
        case.k_cache[order].contiguous(),
        case.v_cache[order].contiguous(),
        (order.argsort()[case.tables[0].long()].int(),),
    )
    assert torch.equal(case.whole(0), moved.whole(0))


def test_far_scores_neither_overflow_nor_lose_the_largest(kernels: str) -> None:
    case = paged_case((100,), 2, 1, 64, torch.float32)
    case.k_cache.mul_(300)
    wrong = (case.whole(0).double() - exact(case, 0)).abs().max()
    assert wrong < 1e-3


def test_blocks_and_lengths_outside_their_tables_are_refused(kernels: str) -> None:
    if kernels == "reference":
        pytest.skip("torch checks its own indices")
    case = paged_case((40,), 2, 1, 64, torch.float32)
    for bad in (len(case.k_cache), -1):
        case.tables[0][1] = bad
        with pytest.raises(IndexError):
            case.whole(0)
    with pytest.raises(IndexError):
        ops.paged_attention(
            case.queries[0],
            case.k_cache,
            case.v_cache,
            torch.zeros(1, 2, dtype=torch.int32),
            torch.tensor([0, 40], dtype=torch.int32),
            torch.tensor([40], dtype=torch.int32),
            1.0,
        )


def test_shapes_that_no_kernel_knows_go_to_the_reference(kernels: str) -> None:
    case = paged_case((33,), 2, 1, 24, torch.float32)
    wrong = (case.whole(0).double() - exact(case, 0)).abs().max()
    assert wrong < 2e-6


def test_the_reference_is_right_in_float16() -> None:
    case = paged_case((70,), 4, 2, 64, torch.float16)
    lens = torch.tensor([70], dtype=torch.int32)
    starts = torch.tensor([0, 70], dtype=torch.int32)
    tables = case.tables[0][None]
    mixed = reference.paged_attention(case.queries[0], case.k_cache, case.v_cache, tables, starts, lens, 64**-0.5)
    assert (mixed.double() - exact(case, 0)).abs().max() < 2e-3
