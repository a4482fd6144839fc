"""Copies blocks between their places in a pool and one contiguous buffer, for transfer and for swap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvferry_kernels.gpu.shipped import FUSED, Shipped

WORD_BYTES = 8
UNIT_BYTES = 16
"""Bytes of the largest load: parts of a block are whole units, at their multiples."""

WORDS = 1024
"""Words that a program has on their way at once: 64 bytes of each of its threads."""

WARPS = 4
FIELDS = 3


@dataclass(frozen=True, slots=True)
class BlockPlanes:
    """What belongs to a pool's blocks: a block is its part of the first plane, of the second, and so on.

    ``tensors``: contiguous, on one device, each ``[num_blocks, ...]``; usually K and V of the first layer, of the
    next ..., and scales where the cache has them. ``fields``: int64 ``[num_planes, 3]``: a plane's address, units of
    16 bytes of a block in it, and those of a block before it. ``block_bytes``: bytes of a block in all planes.
    """

    tensors: tuple[Tensor, ...]
    fields: Tensor
    num_blocks: int
    block_bytes: int

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> BlockPlanes:
        """Make them, once for a pool; waits for the device. ValueError if tensors can't be copied so."""
        num_blocks, device = tensors[0].shape[0], tensors[0].device
        fields, block_bytes = [], 0
        for tensor in tensors:
            if tensor.shape[0] != num_blocks or tensor.device != device or not tensor.is_contiguous():
                raise ValueError(f"a plane {list(tensor.shape)} on {tensor.device}, contiguous or not")
            part_bytes = tensor.nbytes // num_blocks
            if part_bytes % UNIT_BYTES or tensor.data_ptr() % UNIT_BYTES:
                raise ValueError(f"a plane of {part_bytes} bytes a block, at {tensor.data_ptr():#x}")
            fields.append((tensor.data_ptr(), part_bytes // UNIT_BYTES, block_bytes // UNIT_BYTES))
            block_bytes += part_bytes
        return cls(tuple(tensors), torch.tensor(fields, dtype=torch.int64, device=device), num_blocks, block_bytes)


@triton.jit(do_not_specialize=["block_units", "num_blocks"])
def copy_kernel(
    fields,
    blocks,
    staging,
    block_units,
    num_blocks,
    FIELDS: tl.constexpr,
    WORDS: tl.constexpr,
    UNIT: tl.constexpr,
    GATHER: tl.constexpr,
):
    """One block's part of one plane."""
    row, plane = tl.program_id(0).to(tl.int64), tl.program_id(1)
    block = tl.load(blocks + row).to(tl.int64)
    if (block < 0) | (block >= num_blocks):
        return
    address = tl.load(fields + plane * FIELDS)
    # The factor is a constant here, by which the compiler sees that pairs of words are aligned.
    words = tl.load(fields + plane * FIELDS + 1) * UNIT
    pool = tl.multiple_of(address.to(tl.pointer_type(tl.int64)), 16) + block * words
    staged = staging + row * block_units * UNIT + tl.load(fields + plane * FIELDS + 2) * UNIT
    for start in range(0, words, WORDS):
        places = start + tl.arange(0, WORDS)
        inside = places < words
        if GATHER:
            tl.store(staged + places, tl.load(pool + places, mask=inside), mask=inside)
        else:
            tl.store(pool + places, tl.load(staged + places, mask=inside), mask=inside)


def gather_blocks(planes: BlockPlanes, blocks: Tensor, staging: Tensor) -> None:
    """Copy blocks from the pool into ``staging``, uint8 ``[num_copied, block_bytes]``, one after another.

    ``blocks``: ids, int32 or int64 ``[num_copied]``, on the pool's device; one that the pool doesn't have is passed
    over, and its row of ``staging`` left as it is. ValueError for shapes, dtypes or devices that don't fit.
    """
    _copy(planes, blocks, staging, gather=True)


def scatter_blocks(planes: BlockPlanes, blocks: Tensor, staging: Tensor) -> None:
    """Copy blocks from ``staging`` into the pool: the inverse of ``gather_blocks``. No id may come twice."""
    _copy(planes, blocks, staging, gather=False)


def _copy(planes: BlockPlanes, blocks: Tensor, staging: Tensor, gather: bool) -> None:
    device = planes.fields.device
    if blocks.ndim != 1 or blocks.dtype not in (torch.int32, torch.int64) or blocks.device != device:
        raise ValueError(f"blocks {blocks.dtype} {list(blocks.shape)} on {blocks.device}")
    wanted = (len(blocks), planes.block_bytes)
    if staging.shape != wanted or staging.dtype != torch.uint8 or staging.device != device:
        raise ValueError(f"staging {staging.dtype} {list(staging.shape)} on {staging.device}, not {list(wanted)}")
    if not (blocks.is_contiguous() and staging.is_contiguous()) or staging.data_ptr() % UNIT_BYTES:
        raise ValueError(f"staging at {staging.data_ptr():#x} or block ids aren't contiguous")
    if len(blocks) == 0:
        return
    copy_kernel[len(blocks), len(planes.tensors)](
        planes.fields,
        blocks,
        staging.view(torch.int64),
        planes.block_bytes // UNIT_BYTES,
        planes.num_blocks,
        **_constants(gather),
        num_warps=WARPS,
        **FUSED,
    )


def _constants(gather: bool) -> dict[str, object]:
    return {"FIELDS": FIELDS, "WORDS": WORDS, "UNIT": UNIT_BYTES // WORD_BYTES, "GATHER": gather}


def shipped() -> list[Shipped]:
    """Both ways."""
    types = {"fields": "*i64", "blocks": "*i32", "staging": "*i64", "block_units": "i32", "num_blocks": "i32"}
    names = {"gather blocks": True, "scatter blocks": False}
    return [Shipped(name, copy_kernel, types, _constants(gather), WARPS, 1) for name, gather in names.items()]
