"""The activation on a GPU is the reference's."""

import pytest
import torch

from kvferry_kernels import reference
from kvferry_kernels.gpu import activation
from tests.support.gpu_rows import DTYPES, assert_rounded, random

FLOAT_STEPS = {"cpu": 8, "cuda": 40}
"""Roundings to float32: a card's exponential is off by that of its argument, which is up to 20 here."""

ALL_DTYPES = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@ALL_DTYPES
@pytest.mark.parametrize("size", [1, 17, 1024, 1536, 2050])
@pytest.mark.parametrize("num_rows", [1, 4])
def test_silu_and_mul_is_the_reference(device: str, dtype: torch.dtype, size: int, num_rows: int) -> None:
    x = random(num_rows, 2 * size, dtype=dtype, device=device, scale=5.0)
    assert_rounded(activation.silu_and_mul(x), reference.silu_and_mul(x.float()), FLOAT_STEPS[device])


@pytest.mark.filterwarnings("ignore:overflow")  # of the interpreter: infinity is meant
def test_extremes_are_kept(device: str) -> None:
    gate = torch.tensor([[-1e30, -200.0, -87.0, 87.0, 1e30, float("nan")]], device=device)
    result = activation.silu_and_mul(torch.cat((gate, torch.ones_like(gate)), dim=1))[0]
    assert result[:2].abs().max() == 0
    assert result[2].abs() < 1e-35
    assert result[3:5].tolist() == gate[0, 3:5].tolist()
    assert result[5].isnan()


@ALL_DTYPES
def test_a_row_is_bit_equal_alone_and_in_a_batch(device: str, dtype: torch.dtype) -> None:
    x = random(7, 1200, dtype=dtype, device=device)
    assert torch.equal(activation.silu_and_mul(x[2:3].clone()), activation.silu_and_mul(x)[2:3])


def test_no_rows_are_no_work(device: str) -> None:
    assert activation.silu_and_mul(torch.empty(0, 64, device=device)).shape == (0, 32)
