"""Names of full blocks: a hash chain over token ids, the same on gateways and workers.

A block's name depends on everything that its K and V depend on, so equal names mean equal contents.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Sequence

HASH_UNIT = 16
"""Tokens a hash covers, whatever the block size, so that workers of any block size agree."""

HASH_VERSION = b"kvferry-block-1"
DIGEST_BYTES = 32


def root_hash(weights: str, kv_dtype: str, adapter: str = "", salt: str = "") -> bytes:
    """Parent of a prompt's first block: what all blocks of that model, dtype, adapter and salt share."""
    parts = (HASH_VERSION, weights.encode(), kv_dtype.encode(), adapter.encode(), salt.encode())
    return _digest(b"root", *parts)


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Name of the block that holds ``token_ids`` after the block called ``parent``."""
    ids = array("I", token_ids)
    if ids.itemsize != 4:  # pragma: no cover - no supported platform has another size
        raise RuntimeError("array('I') is not 32 bits wide here")
    return _digest(b"block", parent, ids.tobytes())


def chain_hashes(root: bytes, token_ids: Sequence[int]) -> list[bytes]:
    """Names of all full blocks of ``token_ids``, first to last."""
    hashes: list[bytes] = []
    parent = root
    for start in range(0, len(token_ids) - HASH_UNIT + 1, HASH_UNIT):
        parent = block_hash(parent, token_ids[start : start + HASH_UNIT])
        hashes.append(parent)
    return hashes


def _digest(tag: bytes, *parts: bytes) -> bytes:
    """SHA-256 over tagged, length-prefixed parts, so that no two lists of parts collide by joining."""
    state = hashlib.sha256(struct.pack("<I", len(tag)) + tag)
    for part in parts:
        state.update(struct.pack("<I", len(part)))
        state.update(part)
    return state.digest()
