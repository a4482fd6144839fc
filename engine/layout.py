"""How KV blocks lie in memory: cache groups, bytes per block, and the layout's fingerprint."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

BLOCK_SIZE = 16
"""Tokens in a block: small enough to waste little, one vector of scores wide in the CPU kernel."""

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

ORDER = "k:head,dim,token;v:head,token,dim"
"""Inside a block K is stored dimension-major, so that 16 tokens' scores are one vector; V is token-major."""

PAIRED_ORDER = "k:head,dim/2,token,2;v:head,token/2,dim,2"
"""The same with pairs of neighbors together, which is what instructions for products of pairs take."""

PLAIN_ORDER = "kv:head,token,dim"
"""What kernels on a GPU read: all numbers of a token and head beside each other, in K as in V."""


@dataclass(frozen=True)
class CacheGroup:
    """Layers of one shape and attention window, which share one block table.

    ``layers`` are model layer numbers; ``window`` is the sliding window in tokens, 0 for full attention.
    """

    layers: tuple[int, ...]
    num_kv_heads: int
    head_dim: int
    window: int = 0


@dataclass(frozen=True)
class KVLayout:
    """Cache groups of one model in one dtype. All sizes are derived from it, on every side alike.

    ``is_plain``: blocks are in the order of a GPU's kernels, not in that of a CPU's; in a pool on the host each lies in
    one piece.
    """

    groups: tuple[CacheGroup, ...]
    dtype: str
    block_size: int = BLOCK_SIZE
    is_plain: bool = False

    @property
    def item_bytes(self) -> int:
        """Bytes of one number."""
        return ITEM_BYTES[self.dtype]

    @property
    def in_pairs(self) -> bool:
        """Whether pairs of neighbors lie together in a block: so it is on a CPU in dtypes of 16 bits."""
        return self.item_bytes == ITEM_BYTES["bfloat16"] and not self.is_plain

    def half_bytes(self, group: int) -> int:
        """Bytes of K alone (or V alone) of one block in one layer."""
        g = self.groups[group]
        return g.num_kv_heads * g.head_dim * self.block_size * self.item_bytes

    def layer_block_bytes(self, group: int) -> int:
        """Bytes of one block, K and V, in one layer."""
        return 2 * self.half_bytes(group)

    @cached_property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers of all groups."""
        return sum(self.layer_block_bytes(i) * len(g.layers) for i, g in enumerate(self.groups))

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's K and V over all layers."""
        return self.block_bytes // self.block_size

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` tokens occupy, the last one whole."""
        return -(-num_tokens // self.block_size)

    @cached_property
    def fingerprint(self) -> str:
        """Equal on two workers exactly if their blocks can be copied byte by byte."""
        order = PLAIN_ORDER if self.is_plain else PAIRED_ORDER if self.in_pairs else ORDER
        text = repr((self.groups, self.dtype, self.block_size, order))
        return hashlib.sha256(text.encode()).hexdigest()[:16]
