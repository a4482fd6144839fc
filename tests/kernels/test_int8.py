"""Products of 8-bit integers equal their twin, are near the exact product, and a row's bits depend on no other row."""

import math

import pytest
import torch
from torch import Tensor

from kvferry_kernels import native, ops, reference

SHAPES = pytest.mark.parametrize(("outputs", "size"), [(64, 64), (70, 34), (130, 576), (3, 2), (40, 194), (576, 1536)])
GROUPS = pytest.mark.parametrize("group", [ops.GROUP, ops.WHOLE_ROW], ids=["128", "row"])
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@DTYPES
@GROUPS
@pytest.mark.parametrize(("rows", "size"), [(0, 64), (1, 64), (3, 2), (7, 37), (200, 576)])
def test_quantized_rows_equal_their_twins(kernels: str, group: int, dtype: torch.dtype, rows: int, size: int) -> None:
    x = random(rows, size, dtype=dtype)
    for ours, twins in zip(ops.quantize_rows(x, group)[:3], reference.quantize_rows(x, group)[:3], strict=True):
        assert ours.dtype == twins.dtype
        assert torch.equal(ours, twins)


@DTYPES
@GROUPS
def test_a_quantized_number_is_within_half_a_step_of_itself(kernels: str, group: int, dtype: torch.dtype) -> None:
    x = random(50, 190, dtype=dtype)
    rows = ops.quantize_rows(x, group)
    assert rows.numbers.shape == (50, 192)
    assert (rows.numbers[:, 190:] == 0).all()
    width = min(group, 192)
    assert rows.scales.shape[1] == -(-190 // width)
    steps = rows.scales.repeat_interleave(width, dim=1)[:, :190]
    back = rows.numbers[:, :190].float() * steps
    assert ((back - x.float()).abs() <= steps * 0.5001).all()
    whole = rows.numbers.int()
    for i, part in enumerate(whole.split(width, dim=1)):
        assert torch.equal(part.abs().amax(1), torch.full((50,), 127, dtype=torch.int32))
        assert torch.equal(part.sum(1), rows.corrections[:, i] // -128)


@GROUPS
def test_rows_of_zeros_and_of_what_is_no_number(kernels: str, group: int) -> None:
    x = random(5, 40)
    x[0], x[1], x[2, 3], x[3, 4], x[4] = 0.0, 1e-35, math.nan, -math.inf, x[4] * 1e30
    result = ops.linear_int8(ops.quantize_rows(x, group), ops.pack_linear_int8(random(33, 40)), 33, None, torch.float32)
    assert (result[:2] == 0).all()
    assert result[2:4].isnan().all()
    assert result[4].isfinite().all()


@SHAPES
@GROUPS
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 6, 7, 12, 13, 25, 97, 200])
def test_a_product_equals_its_twin(kernels: str, group: int, rows: int, outputs: int, size: int) -> None:
    x, bias = ops.quantize_rows(random(rows, size), group), random(outputs)
    tiles = ops.pack_linear_int8(random(outputs, size))
    for dtype in (torch.float32, torch.bfloat16):
        for offset in (None, bias.to(dtype)):
            result = ops.linear_int8(x, tiles, outputs, offset, dtype)
            twin = reference.linear_int8(x, tiles, outputs, offset, dtype)
            assert result.dtype == twin.dtype == dtype
            near = 2**-7 if dtype == torch.bfloat16 else 2**-20
            assert ((result.float() - twin.float()).abs() <= twin.float().abs() * near + 1e-4).all()


@SHAPES
@GROUPS
def test_a_product_is_near_the_exact_one(kernels: str, group: int, outputs: int, size: int) -> None:
    x, weight = random(40, size), random(outputs, size)
    result = ops.linear_int8(ops.quantize_rows(x, group), ops.pack_linear_int8(weight), outputs, None, torch.float32)
    error = (result.double() - x.double() @ weight.double().T).square().mean().sqrt()
    assert error < 0.02 * math.sqrt(size)


@GROUPS
def test_the_largest_numbers_have_exact_sums(kernels: str, group: int) -> None:
    size = 2 * ops.WHOLE_ROW
    x = torch.ones(2, size)
    x[1] = -1
    rows, tiles = ops.quantize_rows(x, group), ops.pack_linear_int8(torch.ones(3, size))
    result = ops.linear_int8(rows, tiles, 3, None, torch.float32)
    assert torch.equal(result[0], -result[1])
    assert torch.allclose(result[0], torch.full((3,), float(size)), rtol=1e-6)


@SHAPES
@GROUPS
def test_all_libraries_with_fused_sums_compute_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, group: int, outputs: int, size: int
) -> None:
    x, tiles, bias = random(40, size), ops.pack_linear_int8(random(outputs, size)), random(outputs)
    found = []
    for name in native.available():
        if name != "_cpu_base":
            monkeypatch.setattr(ops, "KERNELS", native.open_library(name))
            found += [ops.linear_int8(ops.quantize_rows(x, group), tiles, outputs, bias, torch.float32)]
    assert all(torch.equal(each, found[0]) for each in found)


@SHAPES
@GROUPS
def test_rows_are_bit_equal_at_any_batch_size_and_thread_count(
    kernels: str, threads: None, group: int, outputs: int, size: int
) -> None:
    x, tiles, bias = random(203, size), ops.pack_linear_int8(random(outputs, size)), random(outputs)

    def multiply(start: int, end: int) -> Tensor:
        return ops.linear_int8(ops.quantize_rows(x[start:end], group), tiles, outputs, bias, torch.float32)

    whole = multiply(0, 203)
    for count in (1, 2):
        torch.set_num_threads(count)
        for rows in (1, 2, 3, 5, 6, 7, 12, 13, 16, 95, 96, 97, 202):
            assert torch.equal(multiply(1, 1 + rows), whole[1 : 1 + rows])
