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
            holders = self._holders.get(name, ())
            if not holders or holders[0] != worker:
                others = [peer for peer in holders if peer != worker]
                self._holders[name] = (worker, *others[: MAX_HOLDERS - 1])
            self._holders.move_to_end(name)
        while len(self._holders) > self._max_blocks:
            self._holders.popitem(last=False)

    def cached_tokens(self, hashes: Sequence[bytes], workers: Sequence[Peer]) -> dict[Peer, int]:
        """Leading tokens of the prompt that each worker probably has; workers without any are left out."""
        found: dict[Peer, int] = {}
        left = list(workers)
        for index, name in enumerate(hashes):
            holders = self._holders.get(name, ())
            kept = [peer for peer in left if peer in holders]
            if len(kept) < len(left):
                found.update((peer, index * BLOCK_TOKENS) for peer in left if index and peer not in kept)
                left = kept
            if not left:
                return found
        found.update((peer, len(hashes) * BLOCK_TOKENS) for peer in left if hashes)
        return found
