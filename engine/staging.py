"""Between a device's cache and the pool's memory on the host, where io reads and writes blocks.

On a CPU the two are one and nothing is copied. On another device a block has the same number on both sides; its
bytes are fetched when they are to be shipped, and placed when a hand-over is adopted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.api import Key
from engine.kv_cache import LayerCache, cache_bytes, map_cache, split_cache
from engine.pool_memory import PoolMemory


class Staging:
    """``cache`` is what the model computes with, by model layer."""

    def __init__(self, memory: PoolMemory, device: str = "cpu", *, apart: bool = False) -> None:
        """``apart``: keep a cache of its own even on the CPU, as another device does."""
        layout, num_blocks = memory.layout, memory.num_blocks
        self._host = map_cache(memory.buffer, layout, num_blocks)
        self._apart = apart or device != "cpu"
        self._fetched: dict[tuple[Key, int], int] = {}
        self.cache: list[LayerCache] = self._host
        if self._apart:
            flat = torch.zeros(cache_bytes(layout, num_blocks), dtype=torch.uint8, device=device)
            self.cache = split_cache(flat, layout, num_blocks)

    def fetch(self, key: Key, choice: int, blocks: Sequence[int]) -> None:
        """Final blocks of a branch, all so far in order: those that weren't fetched yet go to the host."""
        if self._apart:
            known = self._fetched.get((key, choice), 0)
            self._copy(self.cache, self._host, blocks[known:])
            self._fetched[key, choice] = len(blocks)

    def place(self, blocks: Sequence[int]) -> None:
        """Blocks that have landed go to the device."""
        if self._apart:
            self._copy(self._host, self.cache, blocks)

    def forget(self, key: Key) -> None:
        """The key is over."""
        if self._apart:
            self._fetched = {known: count for known, count in self._fetched.items() if known[0] != key}

    def _copy(self, source: list[LayerCache], target: list[LayerCache], blocks: Sequence[int]) -> None:
        index = torch.tensor(blocks, dtype=torch.int64)
        for here, there in zip(source, target, strict=True):
            there.k[index.to(there.k.device)] = here.k[index.to(here.k.device)].to(there.k.device)
            there.v[index.to(there.v.device)] = here.v[index.to(here.v.device)].to(there.v.device)
