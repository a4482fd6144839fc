"""Rotation on a GPU is the reference's, and K and V of each token go to its slot and nowhere else."""

import pytest
import torch
from torch import Tensor

from kvferry_kernels.gpu import rotary, rotary_cache, row_reference
from tests.support.gpu_rows import DTYPES, assert_rounded, random

ALL_DTYPES = pytest.mark.parametrize("dtype", DTYPES, ids=str)
MAX_LEN, EPS = 64, 1e-6


def tables(dim: int, device: str) -> tuple[Tensor, Tensor]:
    angles = torch.rand(MAX_LEN, dim // 2, generator=torch.Generator().manual_seed(dim)) * 6
    return angles.cos().to(device), angles.sin().to(device)


def sizes(heads: Tensor, norm: Tensor | None) -> Tensor:
    """What a rotated number can be at most, which is what its error is measured by."""
    x = heads.double()
    if norm is not None:
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * norm.double()
    low, high = x.abs().chunk(2, dim=-1)
    return torch.cat((low + high, low + high), dim=-1)


def norms(dim: int, dtype: torch.dtype, device: str, normed: bool) -> tuple[Tensor | None, Tensor | None]:
    if not normed:
        return None, None
    return random(dim, dtype=dtype, device=device), random(dim, dtype=dtype, device=device, seed=1)


@ALL_DTYPES
@pytest.mark.parametrize(("dim", "heads", "kv_heads"), [(16, 6, 2), (80, 9, 3), (128, 32, 8)])
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
def test_q_and_k_are_rotated_in_place_where_they_lie(
    device: str, dtype: torch.dtype, dim: int, heads: int, kv_heads: int, normed: bool
) -> None:
    qkv = random(3, heads + 2 * kv_heads, dim, dtype=dtype, device=device)
    before = qkv.clone()
    positions = torch.tensor([0, 5, MAX_LEN - 1], device=device)
    q_norm, k_norm = norms(dim, dtype, device, normed)
    q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=1)
    cos, sin = tables(dim, device)
    rotary.rotate(q, k, positions, cos, sin, q_norm, k_norm, EPS)
    old_q, old_k, old_v = before.split((heads, kv_heads, kv_heads), dim=1)
    for new, old, norm in ((q, old_q, q_norm), (k, old_k, k_norm)):
        exact = row_reference.rotate(old, positions, cos, sin, norm, EPS)
        assert_rounded(new, exact, float_steps=8, size=sizes(old, norm))
    assert torch.equal(v, old_v)


@ALL_DTYPES
@pytest.mark.parametrize(("dim", "heads", "kv_heads"), [(16, 6, 2), (80, 9, 9), (128, 32, 8)])
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
def test_rotated_k_and_v_go_to_their_slots_and_nowhere_else(
    device: str, dtype: torch.dtype, dim: int, heads: int, kv_heads: int, normed: bool
) -> None:
    tokens, blocks, block_size = 5, 4, 8
    qkv = random(tokens, (heads + 2 * kv_heads) * dim, dtype=dtype, device=device)
    positions = torch.arange(tokens, device=device) * 3
    slots = torch.tensor([31, -1, 0, 17, -5], device=device)
    caches = [torch.full((blocks, kv_heads, block_size, dim), 7.0, dtype=dtype, device=device) for _ in range(2)]
    exact_caches = [cache.double() for cache in caches]
    q_norm, k_norm = norms(dim, dtype, device, normed)
    tables_and_slots = (positions, *tables(dim, device), slots)
    query = rotary_cache.rotate_and_cache(qkv, *tables_and_slots, *caches, q_norm, k_norm, EPS)
    exact = row_reference.rotate_and_cache(qkv, *tables_and_slots, *exact_caches, q_norm, k_norm, EPS)
    q, k, _ = qkv.view(tokens, -1, dim).split((heads, kv_heads, kv_heads), dim=1)
    assert_rounded(query, exact, float_steps=8, size=sizes(q, q_norm))
    assert_rounded(caches[0], exact_caches[0], float_steps=8, size=sizes(k, k_norm).max().expand_as(caches[0]))
    assert torch.equal(caches[1].double(), exact_caches[1])
    untouched = exact_caches[0] == 7.0
    assert torch.equal(caches[0][untouched], torch.full_like(caches[0][untouched], 7.0))


def test_a_token_is_bit_equal_alone_and_in_a_batch(device: str) -> None:
    qkv = random(6, 8 * 32, dtype=torch.bfloat16, device=device)
    positions, slots = torch.arange(6, device=device), torch.arange(6, device=device) * 2
    caches = [torch.zeros(2, 2, 8, 32, dtype=torch.bfloat16, device=device) for _ in range(4)]
    cos, sin = tables(32, device)
    together = rotary_cache.rotate_and_cache(qkv, positions, cos, sin, slots, *caches[:2])
    alone = rotary_cache.rotate_and_cache(qkv[4:5], positions[4:5], cos, sin, slots[4:5], *caches[2:])
    assert torch.equal(alone, together[4:5])
    for one, all_of_them in ((caches[2], caches[0]), (caches[3], caches[1])):
        assert torch.equal(one[1, :, 0], all_of_them[1, :, 0])


def test_no_tokens_are_no_work(device: str) -> None:
    cache, none = torch.zeros(1, 1, 16, 16, device=device), torch.empty(0, dtype=torch.int64, device=device)
    cos, sin = tables(16, device)
    qkv = torch.empty(0, 3 * 16, device=device)
    assert rotary_cache.rotate_and_cache(qkv, none, cos, sin, none, cache, cache).shape == (0, 1, 16)
    rotary.rotate(qkv.view(0, 3, 16)[:, :1], qkv.view(0, 3, 16)[:, 1:2], none, cos, sin)


def test_a_norm_for_q_alone_is_refused(device: str) -> None:
    x, cos = torch.zeros(1, 1, 16, device=device), torch.zeros(1, 8, device=device)
    with pytest.raises(ValueError, match="both"):
        rotary.rotate(x, x, torch.zeros(1, dtype=torch.int64, device=device), cos, cos, q_norm=x[0, 0])
