"""RMS norms on a GPU are the reference's, row by row, and fused ones are the same as one after the other."""

import pytest
import torch

from kvferry_kernels import reference
from kvferry_kernels.gpu import norm, quantized_rows
from tests.support.gpu_rows import DTYPES, assert_rounded, random

ALL_DTYPES = pytest.mark.parametrize("dtype", DTYPES, ids=str)
EPS = 1e-5


@ALL_DTYPES
@pytest.mark.parametrize("size", [1, 17, 64, 1000, 4096])
@pytest.mark.parametrize("added", [False, True], ids=["plain", "added"])
def test_a_norm_is_the_reference(device: str, dtype: torch.dtype, size: int, added: bool) -> None:
    x, weight = random(5, size, dtype=dtype, device=device), random(size, dtype=dtype, device=device)
    residual = random(5, size, dtype=torch.float32, device=device, scale=3.0) if added else None
    total = x.float() if residual is None else x.float() + residual
    exact = reference.rms_norm(total, weight.float(), EPS)
    assert_rounded(norm.rms_norm(x, weight, EPS, residual), exact, float_steps=8)
    if residual is not None:
        assert torch.equal(residual, total)


@ALL_DTYPES
@pytest.mark.parametrize("added", [False, True], ids=["plain", "added"])
def test_a_quantized_norm_is_a_norm_that_is_quantized_then(device: str, dtype: torch.dtype, added: bool) -> None:
    x, weight = random(4, 300, dtype=dtype, device=device), random(300, dtype=dtype, device=device)
    first = random(4, 300, dtype=torch.float32, device=device) if added else None
    second = None if first is None else first.clone()
    numbers, scales = norm.rms_norm_quantized(x, weight, EPS, first)
    expected, expected_scales = quantized_rows.quantize_rows(norm.rms_norm(x, weight, EPS, second))
    assert torch.equal(numbers.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(scales, expected_scales)
    if first is not None and second is not None:
        assert torch.equal(first, second)


@ALL_DTYPES
def test_a_row_is_bit_equal_alone_and_in_a_batch(device: str, dtype: torch.dtype) -> None:
    x, weight = random(9, 576, dtype=dtype, device=device), random(576, dtype=dtype, device=device)
    together = norm.rms_norm(x, weight, EPS)
    for start, end in ((0, 1), (3, 8)):
        assert torch.equal(norm.rms_norm(x[start:end].clone(), weight, EPS), together[start:end])


def test_no_rows_are_no_work(device: str) -> None:
    x, weight = torch.empty(0, 64, device=device), torch.ones(64, device=device)
    assert norm.rms_norm(x, weight, EPS).shape == (0, 64)
    numbers, scales = norm.rms_norm_quantized(x, weight, EPS)
    assert (numbers.shape, scales.shape) == ((0, 64), (0,))


def test_rows_that_no_program_holds_are_refused(device: str) -> None:
    x = torch.zeros(1, quantized_rows.MAX_SIZE + 1, device=device)
    with pytest.raises(ValueError, match="at most"):
        norm.rms_norm(x, x[0], EPS)
