"""Products with packed weights are right, and a row's bits depend on no other row."""

import ctypes
import mmap

import pytest
import torch
from torch import Tensor

from kvferry_kernels import ops

SHAPES = pytest.mark.parametrize(("outputs", "size"), [(64, 64), (70, 34), (130, 576), (3, 2), (576, 1536)])


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(torch.bfloat16)


@SHAPES
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 6, 7, 13, 200])
def test_a_product_is_its_definition(kernels: str, rows: int, outputs: int, size: int) -> None:
    x, weight, bias = random(rows, size), random(outputs, size), random(outputs)
    tiles = ops.pack_linear(weight)
    exact = x.double() @ weight.double().T
    plain = ops.linear(x, tiles, outputs, None, torch.float32)
    assert plain.dtype == torch.float32
    assert ((plain.double() - exact).abs() < 2e-4).all()
    rounded = ops.linear(x, tiles, outputs, bias, torch.bfloat16)
    exact = exact + bias.double()
    assert rounded.dtype == torch.bfloat16
    assert ((rounded.double() - exact).abs() <= exact.abs() * 2**-8 + 2e-4).all()


@SHAPES
def test_rows_are_bit_equal_at_any_batch_size_and_thread_count(
    kernels: str, threads: None, outputs: int, size: int
) -> None:
    if kernels == "reference":
        pytest.skip("torch's order may depend on the number of rows")
    x, weight = random(203, size), random(outputs, size)
    tiles = ops.pack_linear(weight)
    whole = ops.linear(x, tiles, outputs, None, torch.float32)
    for count in (1, 2):
        torch.set_num_threads(count)
        for rows in (1, 2, 3, 5, 6, 7, 12, 16, 95, 96, 97, 202):
            part = ops.linear(x[1 : 1 + rows], tiles, outputs, None, torch.float32)
            assert torch.equal(part, whole[1 : 1 + rows])


def test_close_results_stay_apart_in_float32(kernels: str) -> None:
    """In bfloat16 25.36 and 25.26 are neighbors, and 25.30 and 25.26 are one number."""
    weight = torch.zeros(64, 2, dtype=torch.bfloat16)
    weight[0], weight[1] = torch.tensor([25.25, 0.05]), torch.tensor([25.25, 0.01])
    x = torch.ones(1, 2, dtype=torch.bfloat16)
    results = [ops.linear(x, ops.pack_linear(weight), 64, None, d)[0] for d in (torch.float32, torch.bfloat16)]
    assert results[0][0] > results[0][1]
    assert results[1][0] == results[1][1]


def test_an_odd_size_is_padded(kernels: str) -> None:
    x, weight = random(3, 7), random(5, 7)
    exact = x.double() @ weight.double().T
    result = ops.linear(x, ops.pack_linear(weight), 5, None, torch.float32)
    assert (result.double() - exact).abs().max() < 1e-5


@pytest.mark.parametrize("rows", [1, 96, 97, 200])
@pytest.mark.parametrize("outputs", [32, 96, 64, 70])
def test_nothing_behind_a_packed_weight_is_read(kernels: str, rows: int, outputs: int) -> None:
    """Behind the weight lies a page that may not be read: whoever does is killed."""
    weight, x = random(outputs, 64), random(rows, 64)
    tiles = ops.pack_linear(weight)
    result = ops.linear(x, before_a_guard(tiles), outputs, None, torch.float32)
    assert torch.equal(result, ops.linear(x, tiles, outputs, None, torch.float32))
    quantized, tiles = ops.quantize_rows(x, ops.WHOLE_ROW), ops.pack_linear_int8(weight)
    result = ops.linear_int8(quantized, before_a_guard(tiles), outputs, None, torch.float32)
    assert torch.equal(result, ops.linear_int8(quantized, tiles, outputs, None, torch.float32))


def before_a_guard(tensor: Tensor) -> Tensor:
    """A copy that ends where a page begins that nobody may read."""
    room = -(-tensor.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, room + mmap.PAGESIZE)
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert protect(flat.data_ptr() + room, mmap.PAGESIZE, 0) == 0
    copy = flat[room - tensor.nbytes : room].view(tensor.dtype).view(tensor.shape)
    return copy.copy_(tensor)
