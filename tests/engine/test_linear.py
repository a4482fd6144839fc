"""Matrix products are right, and a row's bits don't depend on how many rows there are."""

import pytest
import torch

from engine import linear
from engine.linear import Head, Linear, smallest_equal_batch

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
DEFAULT_MODEL = [(960, 576), (576, 576), (3072, 576), (576, 1536)]
ROWS = (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 256, 300)


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(shape[0])).to(dtype)


@DTYPES
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_a_product_is_its_definition(dtype: torch.dtype, bias: bool) -> None:
    weight, x = random(70, 48, dtype=dtype), random(5, 48, dtype=dtype)
    offset = random(70, dtype=dtype) if bias else None
    exact = x.double() @ weight.double().T + (0 if offset is None else offset.double())
    result = Linear(weight, offset)(x)
    assert result.dtype == dtype
    assert (result.double() - exact).abs().max() < (1e-4 if dtype == torch.float32 else 0.1)


@DTYPES
@pytest.mark.parametrize(("outputs", "inputs"), DEFAULT_MODEL)
def test_rows_of_the_default_model_are_bit_equal_at_any_batch_size(
    dtype: torch.dtype, outputs: int, inputs: int
) -> None:
    product, x = Linear(random(outputs, inputs, dtype=dtype)), random(301, inputs, dtype=dtype)
    whole = product(x)
    for rows in ROWS:
        for start in (0, 1):
            assert torch.equal(product(x[start : start + rows]), whole[start : start + rows])


@DTYPES
def test_head_rows_are_bit_equal_and_float32(dtype: torch.dtype) -> None:
    weight, x = random(1000, 576, dtype=dtype), random(40, 576, dtype=dtype)
    head = Head(weight)
    whole = head(x)
    assert whole.dtype == torch.float32
    assert (whole.double() - x.double() @ weight.double().T).abs().max() < 1e-3
    for rows in (1, 2, 5, 6, 7, 16, 39):
        assert torch.equal(head(x[1 : 1 + rows]), whole[1 : 1 + rows])
    assert head(x[:0]).shape == (0, 1000)


def test_few_rows_are_computed_as_the_smallest_batch_with_equal_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "smallest_equal_batch", lambda *_: 4)
    seen: list[int] = []
    multiply = linear.multiply_packed
    monkeypatch.setattr(linear, "multiply_packed", lambda x, w, b: seen.append(len(x)) or multiply(x, w, b))
    weight, x = random(32, 16, dtype=torch.float32), random(5, 16, dtype=torch.float32)
    product = Linear(weight)
    for rows in (1, 3, 4, 5):
        torch.testing.assert_close(product(x[:rows]), x[:rows] @ weight.T)
    assert seen == [4, 4, 4, 5]


def test_a_machine_where_rows_depend_on_the_batch_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(linear, "multiply_packed", lambda x, w, b: torch.full((len(x), 8), float(len(x))))
    smallest_equal_batch.cache_clear()
    assert smallest_equal_batch(8, 8, torch.float32) == 1
    assert "depend on the batch size" in caplog.text
    smallest_equal_batch.cache_clear()
