"""Products of 8-bit numbers on a GPU: quantizing is exact to the bit, products to float32's rounding.

Under the interpreter tensor cores are exact: what is tested for cards before sm_89 and for Hopper is that their ways
give the same sums.
"""

import pytest
import torch
from torch import Tensor

from kvferry_kernels.gpu import fp8_matmul, quantized_rows, row_reference
from kvferry_kernels.gpu.card import capability
from kvferry_kernels.gpu.fp8_tiles import (
    FEW_ROWS,
    IN_PARTS,
    LARGE,
    SOME_ROWS,
    SQUARE,
    STRAIGHT,
    WIDE,
    WIDENED,
    Tiles,
    tiles_for,
    way_of,
)
from tests.support.gpu_rows import DTYPES, assert_rounded, random

ALL_DTYPES = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def every_number(device: str) -> Tensor:
    """All e4m3 that are numbers."""
    bits = torch.arange(256, dtype=torch.uint8)
    return bits[(bits & 0x7F) != 0x7F].view(torch.float8_e4m3fn).to(device)


@ALL_DTYPES
@pytest.mark.parametrize("size", [1, 17, 256, 1000])
def test_rows_are_quantized_as_by_the_reference_to_the_bit(device: str, dtype: torch.dtype, size: int) -> None:
    x = random(6, size, dtype=dtype, device=device, scale=3.0)
    x[1] = 0
    x[2] *= 1e-3
    numbers, scales = quantized_rows.quantize_rows(x)
    expected, expected_scales = row_reference.quantize_rows(x)
    assert torch.equal(numbers.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(scales, expected_scales)


def test_ties_subnormals_and_signs_are_rounded_to_the_nearest_and_even(device: str) -> None:
    numbers = every_number("cpu").float().sort().values
    middles = (numbers[1:] + numbers[:-1]) / 2
    around = torch.cat((numbers, middles, middles.nextafter(numbers[1:]), middles.nextafter(numbers[:-1])))
    x = torch.cat((torch.tensor([448.0]), around)).to(device)[None]
    result, scales = quantized_rows.quantize_rows(x)
    assert scales.tolist() == [1.0]
    assert torch.equal(result.view(torch.uint8), x.to(torch.float8_e4m3fn).view(torch.uint8))


@pytest.mark.filterwarnings("ignore:invalid value")  # of the interpreter: not a number is what is meant
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_a_row_with_an_odd_number_has_no_scale_and_leaves_the_others_theirs(device: str, odd: float) -> None:
    x = random(3, 40, dtype=torch.float32, device=device)
    x[1, 7] = odd
    _, scales = quantized_rows.quantize_rows(x)
    assert scales.isnan().tolist() == [False, True, False]


def operands(num_rows: int, outputs: int, size: int, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, x_scales = row_reference.quantize_rows(random(num_rows, size, dtype=torch.float32, device=device))
    weight, scales = row_reference.quantize_rows(random(outputs, size, dtype=torch.float32, device=device, seed=1))
    return x, x_scales, weight, scales


def float_steps(device: str, way: int) -> float:
    """How many roundings to float32 a sum may be off: Hopper's tensor cores keep 14 bits of what they add up."""
    return 2.0**11 if device == "cuda" and way == IN_PARTS else 16


def magnitude(x: Tensor, x_scales: Tensor, weight: Tensor, weight_scales: Tensor) -> Tensor:
    """Sums of the products' magnitudes, which is what errors of a sum are measured by."""
    return row_reference.fp8_matmul(x.double().abs(), x_scales, weight.double().abs(), weight_scales)


@ALL_DTYPES
@pytest.mark.parametrize(
    ("num_rows", "outputs", "size"),
    [(1, 32, 256), (1, 5, 17), (16, 64, 300), (17, 33, 128), (64, 70, 500), (65, 130, 128), (200, 64, 100)],
)
def test_a_product_is_the_reference(device: str, dtype: torch.dtype, num_rows: int, outputs: int, size: int) -> None:
    args = operands(num_rows, outputs, size, device)
    bias = random(outputs, dtype=dtype, device=device) if outputs % 2 else None
    result = fp8_matmul.fp8_matmul(*args, dtype, bias)
    exact = row_reference.fp8_matmul(*args, bias)
    steps = float_steps(device, way_of(capability(result.device)))
    assert_rounded(result, exact, steps, size=magnitude(*args) + exact.abs())


@pytest.mark.parametrize(
    ("tiles", "way"),
    [
        *((tiles, WIDENED) for tiles in (SQUARE, WIDE, SOME_ROWS, FEW_ROWS)),
        *((tiles, IN_PARTS) for tiles in (LARGE, SQUARE)),
        *((tiles, STRAIGHT) for tiles in (LARGE, WIDE)),
    ],
    ids=lambda one: f"{one.rows}x{one.outputs * one.halves}" if isinstance(one, Tiles) else str(one),
)
@pytest.mark.parametrize(("num_rows", "outputs", "size"), [(130, 150, 200), (5, 256, 256)])
def test_tiles_give_the_reference_whatever_tensor_cores_can_do(
    device: str, tiles: Tiles, way: int, num_rows: int, outputs: int, size: int
) -> None:
    x, x_scales, weight, scales = operands(num_rows, outputs, size, device)
    if way == WIDENED:
        x, weight = x.view(torch.uint8), weight.view(torch.uint8)
    elif device == "cuda" and way_of(capability(x.device)) == WIDENED:
        pytest.skip("this card's tensor cores don't multiply e4m3")
    out = torch.empty(num_rows, outputs, device=device)
    constants = fp8_matmul.constants_of(tiles, outputs, size, way=way, is_biased=False)
    fp8_matmul.fp8_matmul_kernel[(tiles.programs(num_rows, outputs),)](
        out, x, x_scales, weight, scales, out, num_rows, **constants,
        num_warps=tiles.num_warps, num_stages=tiles.num_stages,
    )  # fmt: skip
    numbers = x.view(torch.float8_e4m3fn), x_scales, weight.view(torch.float8_e4m3fn), scales
    assert_rounded(out, row_reference.fp8_matmul(*numbers), float_steps(device, way), size=magnitude(*numbers))


def test_a_row_is_bit_equal_wherever_it_is_in_its_batch(device: str) -> None:
    x, x_scales, weight, scales = operands(100, 48, 200, device)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(3)).to(device)
    together = fp8_matmul.fp8_matmul(x, x_scales, weight, scales, torch.float32)
    mixed = x.view(torch.uint8)[order].view(torch.float8_e4m3fn)
    assert torch.equal(fp8_matmul.fp8_matmul(mixed, x_scales[order], weight, scales, torch.float32), together[order])


def test_invariant_rows_are_bit_equal_in_batches_of_any_number(device: str) -> None:
    x, x_scales, weight, scales = operands(100, 48, 200, device)
    together, *parts = (
        fp8_matmul.fp8_matmul(x[:n], x_scales[:n], weight, scales, torch.bfloat16, batch_invariant=True)
        for n in (100, 1, 16, 64)
    )
    for part in parts:
        assert torch.equal(part, together[: len(part)])


def test_tiles_are_the_largest_that_keep_a_card_busy_or_the_same_for_all() -> None:
    def chosen(num_rows: int, outputs: int, *, way: int = IN_PARTS, batch_invariant: bool = False) -> Tiles:
        return tiles_for(num_rows, outputs, way=way, batch_invariant=batch_invariant)

    assert [chosen(n, 4096) for n in (1, 16, 17, 64)] == [FEW_ROWS, FEW_ROWS, SOME_ROWS, SOME_ROWS]
    assert [chosen(n, 4096) for n in (256, 512, 1024, 8192)] == [WIDE, SQUARE, LARGE, LARGE]
    assert [chosen(n, 28672) for n in (64, 128, 512)] == [WIDE, SQUARE, LARGE]
    assert chosen(8192, 4096, way=WIDENED) == SQUARE
    assert {chosen(n, 4096, batch_invariant=True) for n in (1, 64, 512, 8192)} == {WIDE}


def test_tensor_cores_are_used_as_their_capability_allows() -> None:
    assert [way_of(one) for one in ((8, 0), (8, 6))] == [WIDENED, WIDENED]
    assert [way_of(one) for one in ((8, 9), (9, 0))] == [IN_PARTS, IN_PARTS]
    assert [way_of(one) for one in ((10, 0), (12, 0))] == [STRAIGHT, STRAIGHT]


def test_no_rows_are_no_work(device: str) -> None:
    x, x_scales, weight, scales = operands(1, 8, 16, device)
    assert fp8_matmul.fp8_matmul(x[:0], x_scales[:0], weight, scales, torch.bfloat16).shape == (0, 8)
    numbers, none = quantized_rows.quantize_rows(torch.empty(0, 16, device=device))
    assert (numbers.shape, none.shape) == ((0, 16), (0,))
