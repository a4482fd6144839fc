"""Bytes of blocks between a device's cache and the pool on the host, in the order that the current stream has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from engine.block_runs import runs
from engine.kv_cache import LayerCache
from engine.layout import KVLayout

PART_BYTES = 64 << 20
"""Of the device's memory for blocks on their way, at most: a copy of it takes about a millisecond by PCIe, so that the
start of each weighs little."""


class BlockCopies(Protocol):
    """A block has the same number on both sides."""

    def fetch(self, blocks: Sequence[int]) -> None:
        """From the device to the host."""

    def place(self, blocks: Sequence[int]) -> None:
        """From the host to the device. None comes twice."""


class InPieces:
    """On the host each block lies in one piece: the device gathers blocks into such pieces, and spreads them."""

    def __init__(self, cache: Sequence[LayerCache], layout: KVLayout, host: Tensor) -> None:
        """``cache`` by model layer. ``host``: of ``host_pieces``; it should be pinned if ``cache`` is on a card."""
        from kvferry_kernels.gpu.block_copy import BlockPlanes

        layers = [cache[number] for group in layout.groups for number in group.layers]
        self._planes = BlockPlanes.of([half for layer in layers for half in (layer.k, layer.v)])
        self._host = host
        num_blocks, block_bytes = host.shape
        size = min(max(PART_BYTES // block_bytes, 1), num_blocks)
        self._part = torch.empty(size, block_bytes, dtype=torch.uint8, device=cache[0].k.device)

    def fetch(self, blocks: Sequence[int]) -> None:
        """As ``BlockCopies`` promises."""
        from kvferry_kernels.gpu.block_copy import gather_blocks

        for some in self._parts(blocks):
            gather_blocks(self._planes, self._on_device(some), self._part[: len(some)])
            for here, there in runs(some):
                self._host[there].copy_(self._part[here], non_blocking=True)

    def place(self, blocks: Sequence[int]) -> None:
        """As ``BlockCopies`` promises."""
        from kvferry_kernels.gpu.block_copy import scatter_blocks

        for some in self._parts(blocks):
            for here, there in runs(some):
                self._part[here].copy_(self._host[there], non_blocking=True)
            scatter_blocks(self._planes, self._on_device(some), self._part[: len(some)])

    def _parts(self, blocks: Sequence[int]) -> Iterator[Sequence[int]]:
        """As many as there is room for at once, in order of their numbers: what lies together travels together."""
        ordered = sorted(blocks)
        return (ordered[i : i + len(self._part)] for i in range(0, len(ordered), len(self._part)))

    def _on_device(self, blocks: Sequence[int]) -> Tensor:
        """Ids, without waiting for what the stream has to do before."""
        ids = torch.tensor(blocks, dtype=torch.int64, pin_memory=self._part.is_cuda)
        return ids.to(self._part.device, non_blocking=True)


class ByIndex:
    """The twin, for a host's pool of any layout: layer by layer."""

    def __init__(self, cache: Sequence[LayerCache], host: Sequence[LayerCache]) -> None:
        """Both of one shape."""
        self._device, self._host = cache, host

    def fetch(self, blocks: Sequence[int]) -> None:
        """As ``BlockCopies`` promises."""
        _copy(self._device, self._host, blocks)

    def place(self, blocks: Sequence[int]) -> None:
        """As ``BlockCopies`` promises."""
        _copy(self._host, self._device, blocks)


def host_pieces(buffer: memoryview, layout: KVLayout) -> Tensor:
    """A plain pool's blocks as bytes, uint8 ``[num_blocks, block_bytes]``. Copies nothing."""
    return torch.frombuffer(buffer, dtype=torch.uint8).view(-1, layout.block_bytes)


def _copy(source: Sequence[LayerCache], target: Sequence[LayerCache], blocks: Sequence[int]) -> None:
    index = torch.tensor(blocks, dtype=torch.int64)
    for here, there in zip(source, target, strict=True):
        there.k[index] = here.k[index]
        there.v[index] = here.v[index]
