"""One run of tokens and the blocks that hold its K and V."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile

from engine.block_pool import BlockPool
from engine.layout import BLOCK_SIZE
from protocol.block_hash import block_hash


def blocks_for(num_tokens: int) -> int:
    """Blocks that ``num_tokens`` tokens occupy, the last one whole."""
    return -(-num_tokens // BLOCK_SIZE)


@dataclass(slots=True, eq=False)
class Sequence:
    """Known tokens, of which the first ``num_computed`` have their K and V in ``blocks``.

    ``age`` orders sequences by arrival, older is smaller. ``root`` is the parent of the first block's
    name. ``num_named`` leading blocks are final and offered to the prefix cache. Between steps every
    entry of ``blocks`` is one hold of this sequence. Unless it ``reads_cache`` all its tokens are computed here.
    """

    age: int
    token_ids: list[int]
    root: bytes
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    num_named: int = 0
    _names: list[bytes] = field(default_factory=list)
    reads_cache: bool = True

    @property
    def num_left(self) -> int:
        """Tokens that are known and not computed."""
        return len(self.token_ids) - self.num_computed

    def name(self, index: int) -> bytes:
        """Name of the full block ``index``; each block is hashed once."""
        while len(self._names) <= index:
            start = len(self._names) * BLOCK_SIZE
            parent = self._names[-1] if self._names else self.root
            self._names.append(block_hash(parent, self.token_ids[start : start + BLOCK_SIZE]))
        return self._names[index]

    def find_cached(self, pool: BlockPool, first: int = 0) -> list[int]:
        """Cached blocks from block ``first`` on without a gap, always short of the last token."""
        if not pool.enable_prefix_caching or not self.reads_cache:
            return []
        last = (len(self.token_ids) - 1) // BLOCK_SIZE
        found = (pool.find(self.name(index)) for index in range(first, last))
        return [block for block in takewhile(lambda block: block is not None, found) if block is not None]

    def start(self, pool: BlockPool, cached: list[int]) -> None:
        """Hold the leading ``cached`` blocks and take the rest for all known tokens."""
        for block in cached:
            pool.hold(block)
        missing = blocks_for(len(self.token_ids)) - len(cached)
        self.blocks = cached + [pool.take() for _ in range(missing)]
        self.num_computed = len(cached) * BLOCK_SIZE
        self.num_named = len(cached)

    def needs_block(self, pool: BlockPool) -> bool:
        """Whether writing the next token takes a block: its own is missing, or shared and to be copied."""
        index = self.num_computed // BLOCK_SIZE
        return index >= len(self.blocks) or pool.holds(self.blocks[index]) > 1

    def make_room(self, pool: BlockPool) -> tuple[int, int] | None:
        """Give the next token a block of its own; returns (source, copy) if content has to be copied first."""
        if not self.needs_block(pool):
            return None
        index, block = self.num_computed // BLOCK_SIZE, pool.take()
        if index == len(self.blocks):
            self.blocks.append(block)
            return None
        shared, self.blocks[index] = self.blocks[index], block
        pool.drop(shared)  # others hold it, so its content stays for the copy
        return shared, block

    def advance(self, pool: BlockPool, num_tokens: int) -> None:
        """``num_tokens`` more have their K and V: name the blocks that this filled."""
        self.num_computed += num_tokens
        self.name_full(pool)

    def name_full(self, pool: BlockPool) -> None:
        """Offer all full, computed blocks to the prefix cache; one that has a twin there is swapped for it.

        Equal names mean equal bits, since K and V depend on the context alone. The swap saves memory,
        and it keeps "whoever holds a block holds its parent", on which eviction relies.
        """
        for index in range(self.num_named, self.num_computed // BLOCK_SIZE):
            self.blocks[index] = pool.name(self.blocks[index], self.name(index))
            self.num_named = index + 1

    def fork(self, pool: BlockPool, age: int, num_blocks: int, token_ids: list[int]) -> Sequence:
        """A sequence that begins like this one, shares its first ``num_blocks`` blocks, and goes on by itself.

        ``token_ids`` are all of its tokens, at least as many as are computed here.
        """
        shared = self.blocks[:num_blocks]
        for block in shared:
            pool.hold(block)
        names = self._names[: min(self.num_computed // BLOCK_SIZE, num_blocks)]
        named = min(self.num_named, num_blocks)
        return Sequence(age, token_ids, self.root, self.num_computed, shared, named, names)

    def drop(self, pool: BlockPool) -> None:
        """Give back all holds, children before parents. The tokens stay: it can start again."""
        for block in reversed(self.blocks):
            pool.drop(block)
        self.blocks = []
        self.num_computed = self.num_named = 0

    def num_own(self, pool: BlockPool) -> int:
        """Blocks that would become available if this sequence dropped everything."""
        return sum(pool.holds(block) == 1 for block in self.blocks)
