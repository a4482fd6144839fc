"""Matrix products are right, and a row's bits don't depend on how many rows there are."""

from collections.abc import Iterator

import pytest
import torch

from engine import linear, multiply
from engine.equal_rows import cancelling, smallest_equal_batch
from engine.linear import Head, Linear

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
DEFAULT_MODEL = [(960, 576), (576, 576), (3072, 576), (576, 1536)]
ROWS = (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 256, 300)


@pytest.fixture
def threads() -> Iterator[None]:
    """Put torch's thread count back after a test that changes it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(shape[0])).to(dtype)


@DTYPES
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_a_product_is_its_definition(multiplier: str, dtype: torch.dtype, bias: bool) -> None:
    weight, x = random(70, 48, dtype=dtype), random(5, 48, dtype=dtype)
    offset = random(70, dtype=dtype) if bias else None
    exact = x.double() @ weight.double().T + (0 if offset is None else offset.double())
    result = Linear(weight, offset)(x)
    assert result.dtype == dtype
    assert (result.double() - exact).abs().max() < (1e-4 if dtype == torch.float32 else 0.1)


@pytest.fixture(params=["as here", "onednn"])
def multiplier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whatever this machine uses, and oneDNN, which others use."""
    if request.param == "onednn":
        monkeypatch.setattr(linear.ops, "has_fast_linear", lambda device: False)
    return str(request.param)


@DTYPES
@pytest.mark.parametrize(("outputs", "inputs"), DEFAULT_MODEL)
def test_rows_of_the_default_model_are_bit_equal_at_any_batch_size(
    multiplier: str, dtype: torch.dtype, outputs: int, inputs: int
) -> None:
    weight, x = cancelling(outputs, 301, inputs, dtype)
    product = Linear(weight)
    whole = product(x)
    for rows in ROWS:
        for start in (0, 1):
            assert torch.equal(product(x[start : start + rows]), whole[start : start + rows])


def test_data_that_cancels_shows_an_order_that_ordinary_data_hides() -> None:
    weight, x = cancelling(64, 8, 1536, torch.bfloat16)
    assert (x.double() @ weight.double().T).abs().max() < 1e-9
    backwards = torch.arange(1535, -1, -1)
    sums = [x.float() @ weight.float().T, x.float()[:, backwards] @ weight.float()[:, backwards].T]
    assert (sums[0].bfloat16() != sums[1].bfloat16()).float().mean() > 0.5


@DTYPES
def test_thread_count_changes_no_bit(multiplier: str, dtype: torch.dtype, threads: None) -> None:
    for outputs, inputs in DEFAULT_MODEL:
        weight, x = cancelling(outputs, 33, inputs, dtype)
        product = Linear(weight)
        results = []
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(torch.cat([product(x), product(x[:1]), product(x[:4])]))
        assert torch.equal(results[0], results[1])


@DTYPES
def test_head_rows_are_bit_equal_and_float32(dtype: torch.dtype) -> None:
    weight, x = cancelling(1000, 40, 576, dtype)
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
    original = multiply.multiply_packed
    monkeypatch.setattr(multiply, "multiply_packed", lambda x, w, b: seen.append(len(x)) or original(x, w, b))
    weight, x = random(32, 16, dtype=torch.float32), random(5, 16, dtype=torch.float32)
    product = Linear(weight)
    for rows in (1, 3, 4, 5):
        torch.testing.assert_close(product(x[:rows]), x[:rows] @ weight.T)
    assert seen == [4, 4, 4, 5]


def test_where_rows_depend_on_the_batch_all_calls_have_one_size(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(linear.ops, "has_fast_linear", lambda device: False)
    monkeypatch.setattr(multiply, "multiply_packed", lambda x, w, b: torch.full((len(x), 8), float(len(x))))
    smallest_equal_batch.cache_clear()
    assert smallest_equal_batch(8, 8, torch.float32) is None
    assert "depend on the batch size" in caplog.text
    product = Linear(torch.zeros(8, 8))
    for rows in (0, 1, 31, 32, 33, 100):
        assert torch.equal(product(torch.zeros(rows, 8)), torch.full((rows, 8), 32.0))
    smallest_equal_batch.cache_clear()


def test_what_multiplies_has_a_name(multiplier: str) -> None:
    names = {linear.products("cpu", dtype) for dtype in (torch.float32, torch.bfloat16)}
    assert all(name == "own" or name.startswith(("onednn-", "torch-")) for name in names)
    assert multiplier == "as here" or "own" not in names
    assert linear.products("cuda", torch.bfloat16) == "torch"
