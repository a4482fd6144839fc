"""Blocks come out of a pool and back into another one bit for bit, whatever layers hold."""

import pytest
import torch
from torch import Tensor

from kvferry_kernels.gpu import reference
from kvferry_kernels.gpu.block_copy import BlockPlanes, gather_blocks, scatter_blocks

NUM_BLOCKS = 7
SHAPES = {
    "two layers of bf16": [(torch.bfloat16, (2, 16, 64))] * 4,
    "a layer of int8 with scales": [(torch.int8, (3, 16, 80))] * 2 + [(torch.float32, (3, 16))] * 2,
    "layers of two sizes": [(torch.float16, (8, 32, 128))] * 2 + [(torch.float16, (1, 16, 8))] * 2,
}


def pool(name: str, device: str, seed: int) -> list[Tensor]:
    """Planes of random bytes, NaN among them."""
    random = torch.Generator().manual_seed(seed)
    return [
        torch.randint(256, (NUM_BLOCKS * torch.Size(shape).numel() * dtype.itemsize,), generator=random)
        .to(torch.uint8)
        .view(dtype)
        .view(NUM_BLOCKS, *shape)
        .to(device)
        for dtype, shape in SHAPES[name]
    ]


def bits(planes: list[Tensor]) -> Tensor:
    return torch.cat([plane.view(torch.uint8).flatten() for plane in planes])


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(("ids", "id_type"), [([3], torch.int32), ([6, 0, 2], torch.int64)], ids=["one", "three"])
def test_blocks_travel_bit_for_bit(device: str, name: str, ids: list[int], id_type: torch.dtype) -> None:
    source, goal = pool(name, device, 1), pool(name, device, 2)
    blocks, before = torch.tensor(ids, dtype=id_type, device=device), bits(goal)
    planes = BlockPlanes.of(source)
    staging = torch.empty(len(ids), planes.block_bytes, dtype=torch.uint8, device=device)
    gather_blocks(planes, blocks, staging)
    assert torch.equal(staging, reference.gather_blocks(source, blocks))
    scatter_blocks(BlockPlanes.of(goal), blocks, staging)
    for plane, from_plane in zip(goal, source, strict=True):
        assert torch.equal(bits([plane[blocks]]), bits([from_plane[blocks]]))
        plane[blocks] = from_plane[blocks]
    others = [block for block in range(NUM_BLOCKS) if block not in ids]
    untouched = pool(name, device, 2)
    assert torch.equal(bits([plane[others] for plane in goal]), bits([plane[others] for plane in untouched]))
    assert not torch.equal(bits(goal), before)


def test_ids_that_the_pool_doesnt_have_are_passed_over(device: str) -> None:
    tensors = pool("two layers of bf16", device, 1)
    planes, before = BlockPlanes.of(tensors), bits(tensors)
    blocks = torch.tensor([-1, NUM_BLOCKS, 2, 10**9], dtype=torch.int32, device=device)
    staging = torch.full((4, planes.block_bytes), 5, dtype=torch.uint8, device=device)
    gather_blocks(planes, blocks, staging)
    assert torch.equal(staging[2], reference.gather_blocks(tensors, blocks[2:3])[0])
    assert (staging[[0, 1, 3]] == 5).all()
    scatter_blocks(planes, blocks, staging)
    assert torch.equal(bits(tensors), before)


def test_no_blocks_are_copied_by_no_program(device: str) -> None:
    planes = BlockPlanes.of(pool("two layers of bf16", device, 1))
    staging = torch.empty(0, planes.block_bytes, dtype=torch.uint8, device=device)
    gather_blocks(planes, torch.empty(0, dtype=torch.int32, device=device), staging)


def test_what_would_write_beside_its_tensors_is_refused(device: str) -> None:
    tensors = pool("two layers of bf16", device, 1)
    planes, blocks = BlockPlanes.of(tensors), torch.tensor([1, 2], device=device)
    staging = torch.empty(2, planes.block_bytes, dtype=torch.uint8, device=device)
    for bad in (staging[:1], staging[:, 16:], staging.float(), staging.repeat(1, 2)[:, ::2]):
        with pytest.raises(ValueError, match="staging"):
            gather_blocks(planes, blocks, bad)
    for ids in (blocks.float(), blocks[None], torch.stack((blocks, blocks), 1)[:, 0]):
        with pytest.raises(ValueError, match="block"):
            scatter_blocks(planes, ids, staging)
    for plane in (tensors[0][:-1], tensors[0].transpose(1, 2), torch.zeros(NUM_BLOCKS, 3, device=device)):
        with pytest.raises(ValueError, match="a plane"):
            BlockPlanes.of([tensors[1], plane])
