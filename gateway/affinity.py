"""Which prefixes were sent where: an approximate memory of the workers' prefix caches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.candidate import BLOCK_TOKENS

if TYPE_CHECKING:
    from protocol.messages import Peer

MAX_HOLDERS = 8
"""Workers remembered per block, the latest: more copies than that make the choice easy anyway."""


class Affinity:
    """Least recently used block hashes are forgotten first.

    A holder is one life of a worker, so a worker that restarted with an empty cache gets no credit.
    """

    def __init__(self, max_blocks: int) -> None:
        """``max_blocks`` bounds the memory."""
        self._max_blocks = max_blocks
        self._holders: OrderedDict[bytes, tuple[Peer, ...]] = OrderedDict()

    def __len__(self) -> int:
        """Blocks remembered."""
        return len(self._holders)

    def note(self, hashes: Sequence[bytes], worker: Peer) -> None:
        """A prompt of these full blocks goes to ``worker``. Its first blocks are forgotten last."""
        for name in reversed(hashes):
            others = [peer for peer in self._holders.pop(name, ()) if peer != worker]
            self._holders[name] = (worker, *others[: MAX_HOLDERS - 1])
        while len(self._holders) > self._max_blocks:
            self._holders.popitem(last=False)

    def cached_tokens(self, hashes: Sequence[bytes], workers: Sequence[Peer]) -> dict[Peer, int]:
        """Leading tokens of the prompt that each worker probably has; workers without any are left out."""
        found: dict[Peer, int] = {}
        left = set(workers)
        for index, name in enumerate(hashes):
            left &= set(self._holders.get(name, ()))
            if not left:
                break
            found.update(dict.fromkeys(left, (index + 1) * BLOCK_TOKENS))
        return found
