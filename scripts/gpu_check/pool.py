"""A pool of K and V blocks of all layers, some of which are on their way."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_check.bench import Bench
from gpu_check.paged import LLAMA, TINY
from kvferry_kernels.gpu.block_copy import BlockPlanes, gather_blocks, scatter_blocks

LAYERS, TINY_LAYERS = 32, 1
NUM_BLOCKS, TINY_BLOCKS = 512, 4
"""Of 2 MiB each: 1 GiB, of which half travels."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Planes, and a staging buffer for ``blocks``."""

    tensors: list[Tensor]
    planes: BlockPlanes
    blocks: Tensor
    staging: Tensor

    @classmethod
    def random(cls, bench: Bench, device: torch.device, seed: int = 0) -> Pool:
        """Llama-3-8B's layers in bfloat16, full of random bytes; pools of other seeds send other blocks."""
        num_blocks, layers = bench.size(NUM_BLOCKS, TINY_BLOCKS), bench.size(LAYERS, TINY_LAYERS)
        heads = TINY if bench.is_tiny else LLAMA
        shape = (num_blocks, heads.kv, heads.block, 2 * heads.dim)
        random = torch.Generator(device).manual_seed(seed)
        tensors = [
            torch.randint(256, shape, dtype=torch.uint8, device=device, generator=random) for _ in range(2 * layers)
        ]
        planes = BlockPlanes.of(tensors)
        blocks = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed))[: num_blocks // 2].to(device)
        staging = torch.zeros(len(blocks), planes.block_bytes, dtype=torch.uint8, device=device)
        return cls(tensors, planes, blocks, staging)

    def gather(self) -> None:
        """From the pool into the staging buffer."""
        with _on(self.staging.device):
            gather_blocks(self.planes, self.blocks, self.staging)

    def scatter(self) -> None:
        """From the staging buffer into the pool."""
        with _on(self.staging.device):
            scatter_blocks(self.planes, self.blocks, self.staging)

    def landed_from(self, source: Pool) -> list[tuple[Tensor, Tensor]]:
        """Each plane's blocks as they are here, and as they were there."""
        pairs = zip(self.tensors, source.tensors, strict=True)
        return [(here[self.blocks], there[source.blocks]) for here, there in pairs]


def _on(device: torch.device) -> torch.cuda.device:
    """Triton launches on the current card."""
    return torch.cuda.device(device if device.type == "cuda" else -1)
