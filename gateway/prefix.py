"""A prompt's block hashes, computed once per kind of weights and KV."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.block_hash import HASH_UNIT, chain_hashes, root_hash

if TYPE_CHECKING:
    from protocol.messages import WorkerStatus

MAX_HASHED_TOKENS = 65_536
"""Hashing is this process's time: 65,536 tokens take 6 ms; a longer prompt is matched by its start."""


class Prefix:
    """Names of the full blocks that a prompt begins with."""

    def __init__(self, prompt_ids: tuple[int, ...], salt: str) -> None:
        """``salt`` keeps tenants' caches apart."""
        self._ids = prompt_ids[:MAX_HASHED_TOKENS]
        self._salt = salt
        self._hashes: dict[tuple[str, str], list[bytes]] = {}

    def hashes(self, status: WorkerStatus) -> list[bytes]:
        """Names of the full blocks in caches of workers like this one."""
        kind = (status.weights, status.kv_dtype)
        if kind not in self._hashes:
            full = len(self._ids) // HASH_UNIT * HASH_UNIT
            self._hashes[kind] = chain_hashes(root_hash(*kind, salt=self._salt), self._ids[:full])
        return self._hashes[kind]
