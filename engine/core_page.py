"""Cores of a host, shared by the workers that compute just now: each says so on a page that all of them map."""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from pathlib import Path

NUM_SLOTS = 64
SLOT_BYTES = 8
STALE_NS = 2_000_000_000
"""Who began a step longer ago is stopped or gone, and takes no core from others. Steps are shorter: a chunk of
512 tokens takes some 0.4 s on one core."""


class CorePage:
    """One worker's place on the page. A slot holds the time at which its owner began a step, 0 when it has no work.

    A slot belongs to whoever has its byte of the file locked, which ends with the process. Two that begin at the same
    time may both believe to be alone, for the length of one step.
    """

    def __init__(self, path: Path, num_cores: int) -> None:
        """Take a slot. Raises ``OSError`` if the page can't be shared, or has no slot left."""
        self._num_cores = num_cores
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(self._file, NUM_SLOTS * SLOT_BYTES)
            self._slot = self._free_slot()
            self._map = mmap.mmap(self._file, NUM_SLOTS * SLOT_BYTES)
        except BaseException:
            os.close(self._file)
            raise
        self._begun = memoryview(self._map).cast("Q")
        self.rest()

    def begin(self) -> int:
        """A step begins: how many threads it may have, an equal share among those that have work."""
        now = time.monotonic_ns()
        self._begun[self._slot] = now
        num_busy = sum(now - begun < STALE_NS for begun in self._begun if begun)
        return max(1, self._num_cores // max(1, num_busy))

    def rest(self) -> None:
        """There is no work: the cores are others'."""
        self._begun[self._slot] = 0

    def close(self) -> None:
        """Give the slot back."""
        self.rest()
        self._begun.release()
        self._map.close()
        os.close(self._file)

    def _free_slot(self) -> int:
        for slot in range(NUM_SLOTS):
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
            except (BlockingIOError, PermissionError):
                continue
            return slot
        raise OSError(f"{NUM_SLOTS} workers share the page already")
