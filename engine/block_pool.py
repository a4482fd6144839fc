"""The ledger of blocks: who holds how many, which are free, which are kept for their contents."""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import BrokenPromise
from engine.prefix_cache import PrefixCache


class BlockPool:
    """Reference-counted blocks. Each is in one state: free, held, or cached (named, held by nobody).

    ``num_free + num_held + num_cached == num_blocks`` at all times. Free and cached blocks are
    ``available``. Taking, holding, dropping, naming and finding are O(1).
    """

    def __init__(
        self,
        num_blocks: int,
        enable_prefix_caching: bool = True,
        settle: Callable[[int], None] | None = None,
    ) -> None:
        """All blocks are free. Without prefix caching no block is ever named.

        ``settle`` is called with a block before ``take`` gives it, if its old content may still be on its way.
        """
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {num_blocks}")
        self.num_blocks = num_blocks
        self.enable_prefix_caching = enable_prefix_caching
        self._holds = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cache = PrefixCache()
        self._settle = settle

    @property
    def num_free(self) -> int:
        """Blocks without content worth keeping."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Named blocks that nobody holds."""
        return self._cache.num_idle

    @property
    def num_held(self) -> int:
        """Blocks with at least one hold."""
        return self.num_blocks - self.num_available

    @property
    def num_available(self) -> int:
        """Blocks that ``take`` can give: free ones, then cached ones."""
        return len(self._free) + self._cache.num_idle

    def holds(self, block: int) -> int:
        """Holds on ``block``."""
        return self._holds[self._known(block)]

    def take(self) -> int:
        """A block of unknown content with one hold; forgets the oldest cached one when none is free."""
        if self._free:
            block = self._free.pop()
        else:
            oldest = self._cache.forget_oldest()
            if oldest is None:
                raise BrokenPromise("a block was promised, but all are held")
            block = oldest
        if self._settle is not None:
            self._settle(block)
        self._holds[block] = 1
        return block

    def hold(self, block: int) -> None:
        """One more hold on a held or cached block."""
        if self._holds[self._known(block)] == 0 and not self._cache.wake(block):
            raise BrokenPromise(f"block {block} is free, so nobody can hold its content")
        self._holds[block] += 1

    def drop(self, block: int) -> None:
        """Give back one hold. After the last one a named block is cached, another is free."""
        holds = self._holds[self._known(block)]
        if holds == 0:
            raise BrokenPromise(f"block {block} was given back more often than it was held")
        self._holds[block] = holds - 1
        if holds == 1 and not self._cache.rest(block):
            self._free.append(block)

    def name(self, block: int, name: bytes) -> int:
        """Name a held block whose content is final; returns the block to use for this content from now on.

        That is the one that had the name before, if any: the caller's hold moves over to it.
        """
        if self._holds[self._known(block)] == 0:
            raise BrokenPromise(f"block {block} is named but nobody holds it")
        if not self.enable_prefix_caching:
            return block
        known = self._cache.name_of(block)
        if known is not None and known != name:
            raise BrokenPromise(f"block {block} would get a second name")
        owner = self._cache.add(block, name)
        if owner != block:
            self.hold(owner)
            self.drop(block)
        return owner

    def find(self, name: bytes) -> int | None:
        """The block that carries ``name``, held or cached. Asking doesn't count as use."""
        return self._cache.find(name)

    def check(self) -> None:
        """Raise ``BrokenPromise`` unless every block is in exactly one state and the sums hold."""
        free, idle = set(self._free), set(self._cache.idle_blocks())
        if len(free) != len(self._free):
            raise BrokenPromise("a block is in the free list twice")
        for block, holds in enumerate(self._holds):
            states = (block in free) + (block in idle) + (holds > 0)
            if holds < 0 or states != 1:
                raise BrokenPromise(f"block {block} is in {states} states, with {holds} holds")
            if block in free and self._cache.name_of(block) is not None:
                raise BrokenPromise(f"block {block} is free and still has a name")
        for name, block in self._cache.entries().items():
            if self._cache.name_of(block) != name:
                raise BrokenPromise(f"block {block} doesn't know its name")
        if self.num_free + self.num_held + self.num_cached != self.num_blocks:
            raise BrokenPromise("free, held and cached blocks don't add up")

    def _known(self, block: int) -> int:
        if not 0 <= block < self.num_blocks:
            raise BrokenPromise(f"block {block} is not in this pool of {self.num_blocks}")
        return block
