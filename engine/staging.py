"""Between a device's cache and the pool's memory on the host, where io reads and writes blocks.

On a CPU the two are one and nothing is copied. On another device a block has the same number on both sides; its bytes
are fetched when they are to be shipped, and placed when a hand-over is adopted, both beside what is computed. Until a
copy is done its blocks are under way: nobody is told of what isn't fetched, no step reads what isn't placed, and no
block is given to somebody else.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import torch

from engine.api import Key
from engine.block_copies import BlockCopies, ByIndex, InPieces, host_pieces
from engine.copy_stream import Copy, CopyStream, CudaStream, LateStream
from engine.kv_cache import LayerCache, cache_bytes, map_cache, split_cache
from engine.pinned import pin
from engine.pool_memory import PoolMemory


class Staging:
    """``cache`` is what the model computes with, by model layer; ``is_apart`` if that isn't the pool's memory."""

    def __init__(
        self,
        memory: PoolMemory,
        device: str = "cpu",
        *,
        apart: bool = False,
        stream: CopyStream | None = None,
        max_pinned_bytes: int = sys.maxsize,
    ) -> None:
        """``apart``: keep a cache of its own in any case. ``stream`` is where copies are done.

        A larger pool than ``max_pinned_bytes`` isn't pinned for a card.
        """
        self._fetched: dict[tuple[Key, int], int] = {}
        self._under_way: deque[tuple[Copy, Sequence[int]]] = deque()
        self._busy: dict[int, Copy] = {}
        self._placing: dict[int, Copy] = {}
        self._unpin: Callable[[], None] = lambda: None
        self.is_apart = apart or device != "cpu" or memory.layout.is_plain
        self.cache: list[LayerCache]
        if self.is_apart:
            self._keep_apart(memory, torch.device(device), max_pinned_bytes)
            self._stream = stream or (CudaStream(torch.device(device)) if device != "cpu" else LateStream())
        else:
            self.cache = map_cache(memory.buffer, memory.layout, memory.num_blocks)

    def _keep_apart(self, memory: PoolMemory, device: torch.device, max_pinned_bytes: int) -> None:
        layout, num_blocks = memory.layout, memory.num_blocks
        flat = torch.zeros(cache_bytes(layout, num_blocks), dtype=torch.uint8, device=device)
        self.cache = split_cache(flat, layout, num_blocks)
        self._copies: BlockCopies
        if not layout.is_plain:
            self._copies = ByIndex(self.cache, map_cache(memory.buffer, layout, num_blocks))
            return
        host = host_pieces(memory.buffer, layout)
        self._copies = InPieces(self.cache, layout, host)
        if device.type == "cuda":
            self._unpin = pin(host, device, max_pinned_bytes)

    def fetch(self, key: Key, choice: int, blocks: Sequence[int]) -> Copy:
        """Final blocks of a branch, all so far in order: those that weren't fetched yet go to the host."""
        known = self._fetched.get((key, choice), 0)
        self._fetched[key, choice] = len(blocks)
        return self._begin(self._copies.fetch, blocks[known:])

    def place(self, blocks: Sequence[int]) -> None:
        """Blocks that have landed go to the device."""
        if blocks:
            copy = self._begin(self._copies.place, blocks)
            self._placing.update(dict.fromkeys(blocks, copy))

    def forget(self, key: Key) -> None:
        """The key is over. What is under way for it goes on."""
        self._fetched = {known: count for known, count in self._fetched.items() if known[0] != key}

    def look(self) -> None:
        """Note which copies are done by now."""
        while self._under_way and self._under_way[0][0].is_done():
            copy, blocks = self._under_way.popleft()
            for block in blocks:
                for of in (self._busy, self._placing):
                    if of.get(block) is copy:
                        del of[block]

    def settle(self, block: int) -> None:
        """A block is given to somebody new: wait for the copy that still reads or writes it."""
        if block in self._busy:
            self._busy[block].finish()

    @property
    def places(self) -> bool:
        """Whether anything is on its way to the device."""
        return bool(self._placing)

    def is_placing(self, blocks: Iterable[int]) -> bool:
        """Whether any of these blocks is."""
        return any(block in self._placing for block in blocks)

    def come_first(self, blocks: Iterable[int]) -> None:
        """What is computed from now on reads these blocks: it comes after what places them."""
        for copy in dict.fromkeys(self._placing[block] for block in blocks if block in self._placing):
            copy.come_first()

    def close(self) -> None:
        """Wait for all that is under way; nothing is copied any more."""
        while self._under_way:
            self._under_way.popleft()[0].finish()
        self._unpin()
        self._unpin = lambda: None

    def _begin(self, work: Callable[[Sequence[int]], None], blocks: Sequence[int]) -> Copy:
        copy = self._stream.run(lambda: work(blocks))
        self._busy.update(dict.fromkeys(blocks, copy))
        self._under_way.append((copy, blocks))
        return copy
