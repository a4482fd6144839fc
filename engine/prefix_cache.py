"""Which full blocks have a name, and which of them nobody holds: the blocks that may be forgotten, oldest first."""

from __future__ import annotations

from collections import OrderedDict


class PrefixCache:
    """A two-way map between names and blocks, and the idle (unheld) named blocks in order of last use.

    Whoever holds a block holds its parent too and lets go of children first, so the idle order has
    each child before its parent: taking the oldest never cuts a chain in the middle. All O(1).
    """

    def __init__(self) -> None:
        """Starts empty."""
        self._blocks: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        """Named blocks, held or idle."""
        return len(self._blocks)

    @property
    def num_idle(self) -> int:
        """Named blocks that nobody holds."""
        return len(self._idle)

    def find(self, name: bytes) -> int | None:
        """The block that carries ``name``."""
        return self._blocks.get(name)

    def name_of(self, block: int) -> bytes | None:
        """The name that ``block`` carries."""
        return self._names.get(block)

    def add(self, block: int, name: bytes) -> int:
        """Name a held, unnamed block; returns the block that carries ``name`` now: an older twin keeps it."""
        owner = self._blocks.setdefault(name, block)
        if owner == block:
            self._names[block] = name
        return owner

    def rest(self, block: int) -> bool:
        """Nobody holds ``block`` any more. False if it has no name and so isn't kept."""
        if block not in self._names:
            return False
        self._idle[block] = None
        return True

    def wake(self, block: int) -> bool:
        """Somebody holds ``block`` again. False if it wasn't idle here."""
        if block not in self._idle:
            return False
        del self._idle[block]
        return True

    def forget_oldest(self) -> int | None:
        """Take the name from the idle block used longest ago and return that block."""
        if not self._idle:
            return None
        block, _ = self._idle.popitem(last=False)
        del self._blocks[self._names.pop(block)]
        return block

    def idle_blocks(self) -> tuple[int, ...]:
        """All idle blocks, oldest first; for checks."""
        return tuple(self._idle)

    def entries(self) -> dict[bytes, int]:
        """A copy of the map from name to block; for checks."""
        return dict(self._blocks)
