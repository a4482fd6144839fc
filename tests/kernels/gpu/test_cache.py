"""New K and V lie in their slots as the reference puts them there, and nothing else changes."""

import pytest
import torch
from torch import Tensor

from kvferry_kernels.gpu import reference
from kvferry_kernels.gpu.cache import write_cache
from kvferry_kernels.gpu.paged_cache import PagedCache
from tests.support.gpu_cases import empty_cache

CACHES = pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        (torch.float32, torch.float32),
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.float8_e4m3fn),
        (torch.float16, torch.int8),
        (torch.bfloat16, torch.float8_e4m3fn),
        (torch.bfloat16, torch.int8),
    ],
    ids=["fp32", "fp16", "bf16", "fp32-fp8", "fp16-int8", "bf16-fp8", "bf16-int8"],
)


def bits(tensor: Tensor | None) -> Tensor:
    """What lies in memory: NaN is equal to itself there."""
    assert tensor is not None
    return tensor.view(torch.uint8).cpu()


def same(a: PagedCache, b: PagedCache) -> bool:
    pairs = [(a.k, b.k), (a.v, b.v)]
    if a.k_scales is not None:
        pairs += [(a.k_scales, b.k_scales), (a.v_scales, b.v_scales)]
    return all(torch.equal(bits(x), bits(y)) for x, y in pairs)


def written(k: Tensor, v: Tensor, slots: Tensor, stored: torch.dtype, block_size: int = 16) -> PagedCache:
    """Write into an empty cache of four blocks: as the reference does, or the test fails."""
    caches = [empty_cache(4, k.shape[1], k.shape[2], stored, str(k.device), block_size) for _ in range(2)]
    write_cache(k, v, caches[0], slots)
    reference.write_cache(k, v, caches[1], slots)
    assert same(*caches)
    return caches[0]


@CACHES
@pytest.mark.parametrize(("kv_heads", "dim", "block_size"), [(1, 16, 16), (3, 80, 32), (10, 64, 16)])
def test_tokens_lie_in_their_slots_and_nothing_else_changes(
    device: str, dtype: torch.dtype, stored: torch.dtype, kv_heads: int, dim: int, block_size: int
) -> None:
    random = torch.Generator().manual_seed(kv_heads)
    slots = torch.randperm(4 * block_size, generator=random)[:9]
    k, v = (torch.randn(9, kv_heads, dim, generator=random).to(device, dtype) for _ in range(2))
    cache = written(k, v, slots.to(device), stored, block_size)
    untouched = empty_cache(4, kv_heads, dim, stored, device, block_size)
    assert not same(cache, untouched)


@CACHES
def test_tokens_whose_slot_is_none_of_the_cache_arent_stored(
    device: str, dtype: torch.dtype, stored: torch.dtype
) -> None:
    k, v = (torch.ones(4, 2, 16, dtype=dtype, device=device) for _ in range(2))
    cache = written(k, v, torch.tensor([-1, 64, -(10**12), 10**12], device=device), stored)
    assert same(cache, empty_cache(4, 2, 16, stored, device))


def test_tokens_may_lie_apart_as_in_a_slice_of_q_k_and_v(device: str) -> None:
    qkv = torch.randn(5, 8, 32, device=device)
    cache = written(qkv[:, 4:6], qkv[:, 6:], torch.arange(5, device=device), torch.float32)
    assert torch.equal(cache.v[0, :, :5].transpose(0, 1), qkv[:, 6:])


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.int8])
def test_a_batch_of_no_tokens_or_of_one_is_written(device: str, stored: torch.dtype) -> None:
    k = torch.randn(1, 2, 16, device=device).bfloat16()
    nothing = written(k[:0], k[:0], torch.empty(0, dtype=torch.int64, device=device), stored)
    assert same(nothing, empty_cache(4, 2, 16, stored, device))
    written(k, k, torch.tensor([17], device=device), stored)


def test_every_number_is_rounded_to_the_nearest_of_e4m3(device: str) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    finite = every[every.isfinite()].sort().values
    between = (finite[1:] + finite[:-1]) / 2  # ties, which go to the even one
    near = torch.cat((between * (1 - 2**-20), between, between * (1 + 2**-20)))
    rare = torch.tensor(
        [0.0, -0.0, 1e-30, -1e-30, 448.0, 464.0, 465.0, 1e30, torch.inf, -torch.inf, torch.nan, 2.0**-10]
    )
    numbers = torch.cat((every, near, rare))
    rows = torch.nn.functional.pad(numbers, (0, -len(numbers) % 64)).view(-1, 1, 64).to(device)
    k = PagedCache(
        *(torch.zeros(4, 1, 16, 64, device=device).to(torch.float8_e4m3fn) for _ in range(2)),
        *(torch.ones(1, device=device) for _ in range(2)),
    )
    write_cache(rows, rows, k, torch.arange(len(rows), device=device))
    stored = k.k.flatten(0, 2)[: len(rows)].float().flatten()[: len(numbers)].cpu()
    expected = numbers.clamp(-448, 448).to(torch.float8_e4m3fn).float()
    assert torch.equal(stored.nan_to_num(1e9), expected.nan_to_num(1e9))
    assert torch.equal(stored.signbit() & (stored == 0), expected.signbit() & (expected == 0))


@pytest.mark.parametrize("odd", [torch.inf, -torch.inf, torch.nan])
def test_a_row_with_a_number_that_isnt_finite_has_a_scale_of_nan(device: str, odd: float) -> None:
    k = torch.randn(2, 2, 16, device=device)
    k[1, 0, 3] = odd
    cache = empty_cache(1, 2, 16, torch.int8, device)
    write_cache(k, k, cache, torch.arange(2, device=device))
    assert cache.k_scales is not None
    assert cache.k_scales[0, :, :2].isnan().tolist() == [[False, True], [False, False]]


def test_integers_stand_for_the_numbers_to_half_a_step(device: str) -> None:
    k = torch.randn(16, 2, 64, device=device) * torch.logspace(-6, 6, 16, device=device)[:, None, None]
    k[3, 1] = 0.0
    cache = written(k, k, torch.arange(16, device=device), torch.int8)
    assert cache.k_scales is not None
    off = (reference.numbers(cache.k, cache.k_scales)[0].transpose(0, 1) - k).abs()
    assert (off <= 0.5001 * k.abs().amax(-1, keepdim=True) / 127).all()
