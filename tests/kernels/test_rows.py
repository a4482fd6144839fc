"""Norm, activation, rotary embedding and logits: each equals its definition, row by row."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvferry_kernels import native, ops, reference

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
SIZES = pytest.mark.parametrize("size", [1, 15, 16, 17, 64, 576, 1000])


def random(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).to(dtype)


def assert_near(result: Tensor, exact: Tensor) -> None:
    """Within one rounding of the dtype, and a few of float32."""
    step = 2**-8 if result.dtype == torch.bfloat16 else 4e-6
    assert result.dtype != torch.float64
    assert ((result.double() - exact).abs() <= exact.abs() * step + 1e-6).all()


def exact_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


@DTYPES
@SIZES
def test_rms_norm_is_its_definition(kernels: str, dtype: torch.dtype, size: int) -> None:
    x, weight = random(5, size, dtype=dtype), random(size, dtype=dtype)
    assert_near(ops.rms_norm(x, weight, 1e-5), exact_norm(x, weight, 1e-5))


@DTYPES
@SIZES
def test_rms_norm_adds_into_the_residual_first(kernels: str, dtype: torch.dtype, size: int) -> None:
    x, weight = random(5, size, dtype=dtype), random(size, dtype=dtype)
    residual = random(5, size, dtype=torch.float32, scale=3.0)
    total = x.float() + residual
    assert_near(ops.rms_norm(x, weight, 1e-5, residual), exact_norm(total, weight, 1e-5))
    assert torch.equal(residual, total)


@DTYPES
@SIZES
def test_silu_and_mul_is_its_definition(kernels: str, dtype: torch.dtype, size: int) -> None:
    x = random(4, 2 * size, dtype=dtype, scale=5.0)
    gate, up = x.double().chunk(2, dim=-1)
    assert_near(ops.silu_and_mul(x), gate * torch.sigmoid(gate) * up)


def test_silu_keeps_extremes(kernels: str) -> None:
    gate = torch.tensor([[-1e30, -200.0, -88.0, 88.0, 1e30, float("nan")]])
    result = ops.silu_and_mul(torch.cat((gate, torch.ones_like(gate)), dim=1))[0]
    assert result[:2].abs().max() == 0
    assert result[2].abs() < 1e-35
    assert result[3:5].tolist() == gate[0, 3:5].tolist()
    assert result[5].isnan()


@DTYPES
def test_rows_are_bit_equal_alone_and_together(kernels: str, dtype: torch.dtype) -> None:
    x, weight = random(200, 576, dtype=dtype), random(576, dtype=dtype)
    normed, mixed = ops.rms_norm(x, weight, 1e-5), ops.silu_and_mul(x)
    for start, end in ((0, 1), (3, 20), (199, 200)):
        part = x[start:end].clone()
        assert torch.equal(ops.rms_norm(part, weight, 1e-5), normed[start:end])
        assert torch.equal(ops.silu_and_mul(part), mixed[start:end])


@DTYPES
@pytest.mark.parametrize("dim", [16, 64, 80, 96, 128])
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
def test_rope_rotates_pairs_and_writes_each_token_to_its_slot(
    kernels: str, dtype: torch.dtype, dim: int, normed: bool
) -> None:
    heads, kv_heads, tokens = 6, 2, 21
    qkv = random(tokens, (heads + 2 * kv_heads) * dim, dtype=dtype)
    positions = torch.arange(tokens) * 3
    slots = torch.randperm(64, generator=torch.Generator().manual_seed(1))[:tokens]
    angles = torch.rand(64, dim // 2, generator=torch.Generator().manual_seed(2)).double() * 6
    halves = dtype == torch.bfloat16
    k_cache = torch.full((4, kv_heads, *((dim // 2, 16, 2) if halves else (dim, 16))), 7.0, dtype=dtype)
    v_cache = torch.full((4, kv_heads, *((8, dim, 2) if halves else (16, dim))), 7.0, dtype=dtype)
    weights = [random(dim, dtype=dtype) if normed else None for _ in range(2)]
    query = ops.rope_and_cache(
        qkv, positions, angles.cos().float(), angles.sin().float(), slots, k_cache, v_cache,
        *weights, 1e-6,
    )  # fmt: skip
    q, k, v = qkv.unflatten(1, (-1, dim)).double().split((heads, kv_heads, kv_heads), dim=1)

    def turned(x: Tensor, weight: Tensor | None) -> Tensor:
        if weight is not None:
            x = exact_norm(x, weight, 1e-6)
        pairs = torch.complex(*x.chunk(2, dim=-1))
        turn = torch.polar(torch.ones_like(angles), angles)[positions].unsqueeze(1)
        return torch.cat(torch.view_as_real(pairs * turn).unbind(-1), dim=-1)

    step = 2**-8 if dtype == torch.bfloat16 else 2e-6

    def near(result: Tensor, exact: Tensor) -> bool:
        return bool(((result.double() - exact).abs() <= exact.abs() * step + 2e-6).all())

    assert near(query, turned(q, weights[0]))
    keys, values = reference.in_order_k(k_cache), reference.in_order_v(v_cache)
    assert near(keys[slots // 16, :, :, slots % 16], turned(k, weights[1]))
    assert torch.equal(values[slots // 16, :, slots % 16].double(), v)
    untouched = torch.ones(64, dtype=torch.bool)
    untouched[slots] = False
    rest = untouched.nonzero().flatten()
    assert (keys[rest // 16, :, :, rest % 16] == 7).all()
    assert (values[rest // 16, :, rest % 16] == 7).all()


def test_slots_and_positions_outside_their_tables_are_refused(kernels: str) -> None:
    cache = torch.zeros(2, 1, 16, 16)
    table = torch.zeros(8, 8)
    qkv = torch.zeros(1, 48)
    good = torch.tensor([1])
    bad_slots = (-1, 32) if kernels != "reference" else (32,)
    for slot in bad_slots:
        with pytest.raises(IndexError):
            ops.rope_and_cache(qkv, good, table, table, torch.tensor([slot]), cache, cache)
    with pytest.raises(IndexError):
        ops.rope_and_cache(qkv, torch.tensor([8]), table, table, good, cache, cache)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(width=32), min_size=1, max_size=40))
def test_bfloat16_is_rounded_to_nearest_even(values: list[float]) -> None:
    """A head of ones and zeros, turned by a table whose cosines are the values, is the values, rounded."""
    half = -(-len(values) // 8) * 8
    cos, sin = torch.zeros(1, half), torch.zeros(1, half)
    cos[0, : len(values)] = torch.tensor(values)
    head = torch.cat((torch.ones(half), torch.zeros(half))).to(torch.bfloat16)
    cache = torch.zeros(1, 1, 2 * half, 16, dtype=torch.bfloat16)
    zero = torch.tensor([0])
    for name in native.available():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ops, "KERNELS", native.open_library(name))
            query = ops.rope_and_cache(
                head.repeat(1, 3), zero, cos, sin, zero, cache, cache.transpose(2, 3).contiguous()
            )
        rounded = cos[0].to(torch.bfloat16)
        assert torch.equal(query[0, 0, :half].isnan(), rounded.isnan())
        assert torch.equal(query[0, 0, :half].nan_to_num(), rounded.nan_to_num())


def test_one_openmp_runtime_is_mapped() -> None:
    names = native.available()
    if not names:
        pytest.skip("no compiled kernels here")
    ops.silu_and_mul(torch.zeros(64, 4096))
    with open("/proc/self/maps") as maps:  # noqa: PTH123 - not a file one can resolve
        libraries = {line.split()[-1] for line in maps if "omp" in line and ".so" in line}
    runtimes = {name for name in libraries if "libgomp" in name or "libiomp" in name}
    assert len(runtimes) == 1


def test_without_a_library_the_reference_is_used_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "available", list)
    assert native.load() is None
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert reference.rms_norm(torch.ones(1, 4), torch.ones(4), 0.0).tolist() == [[1, 1, 1, 1]]
