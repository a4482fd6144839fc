"""Products whose rows don't depend on their number: right to float32's rounding, and the same in any batch."""

import pytest
import torch

from kvferry_kernels.gpu.matmul import ROWS, matmul
from tests.support.gpu_rows import DTYPES, assert_rounded, random


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("num_rows", "outputs", "size"), [(1, 1, 1), (3, 130, 65), (ROWS + 1, 128, 64), (17, 200, 100)]
)
def test_products_are_rounded_once(device: str, dtype: torch.dtype, num_rows: int, outputs: int, size: int) -> None:
    x = random(num_rows, size, dtype=dtype, device=device)
    weight = random(outputs, size, dtype=dtype, device=device, seed=1)
    bias = random(outputs, dtype=dtype, device=device, seed=2)
    exact = x.double() @ weight.double().T
    sizes = x.double().abs() @ weight.double().abs().T + bias.double().abs()
    assert_rounded(matmul(x, weight, bias), exact + bias.double(), size, sizes)
    logits = matmul(x, weight, dtype=torch.float32)
    assert logits.dtype == torch.float32
    assert_rounded(logits, exact, size, sizes)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_does_not_depend_on_how_many_there_are(device: str, dtype: torch.dtype) -> None:
    x = random(9 * ROWS + 5, 70, dtype=dtype, device=device)
    weight = random(131, 70, dtype=dtype, device=device, seed=1)
    whole = matmul(x, weight)
    for rows in (slice(0, 1), slice(3, 20), slice(70, 70 + ROWS), slice(8 * ROWS, None)):
        assert torch.equal(matmul(x[rows].contiguous(), weight), whole[rows])


def test_nothing_is_a_product_of_no_rows(device: str) -> None:
    assert matmul(torch.zeros(0, 8, device=device), torch.ones(5, 8, device=device)).shape == (0, 5)


def test_tensors_that_do_not_fit_are_refused(device: str) -> None:
    x = torch.zeros(2, 8, device=device)
    with pytest.raises(ValueError, match="weight"):
        matmul(x, torch.ones(5, 9, device=device))
    with pytest.raises(ValueError, match="bias"):
        matmul(x, torch.ones(5, 8, device=device), torch.ones(4, device=device))
