"""Cores of a host, shared by the workers that compute just now: each says so on a page that all of them map.

Workers that decode go first. A decode step claims cores, its share or all of them, and prefill leaves them to it,
between two phases of a layer. As long as prefill has work too, decode steps begin no sooner than a stream's gap allows,
so that prefill has all cores in between.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import time
from dataclasses import dataclass
from pathlib import Path

from engine.core_share import CoreShare
from engine.prompt_time import prompt_time

NUM_SLOTS = 64
SLOT_WORDS = 4
SLOT_BYTES = 8 * SLOT_WORDS
STALE_NS = 2_000_000_000
"""Who last gave a sign of work longer ago is stopped or gone, and takes no core from others. A layer is shorter. Nor
does who gave it in the future: that was before this machine's last start, in a file that outlived it."""

ALIVE, KIND, CLAIM, PROMPTS = range(4)
"""Words of a slot: when its owner last began a step or a layer, 0 without work; whether that is decode or prefill; how
many cores a decode step has claimed from prefill, 0 between steps; how many prompts prefill has before it."""

DECODE, PREFILL = 1, 2

POLL_NS = 1_000_000
"""Who waits for the time of its step looks again so often, at the latest."""


@dataclass(frozen=True, slots=True)
class Claims:
    """Where the numbers of claimed cores stand, of ``num_cores``: ``count`` words of 64 bits, ``stride`` apart."""

    address: int
    count: int
    stride: int
    num_cores: int


class CorePage:
    """One worker's place on the page.

    A slot belongs to whoever has its byte of the file locked, which ends with the process. Two that begin at the same
    time may both believe to be alone, for the length of one step.
    """

    def __init__(self, path: Path, num_cores: int, *, prefill: bool = False, itl_limit_ms: float = 50.0) -> None:
        """Take a slot. Raises ``OSError`` if the page can't be shared, or has no slot left.

        ``prefill``: cores are left to decode steps, which else keep the gap of their streams near ``itl_limit_ms``.
        """
        self._num_cores = num_cores
        self._kind = PREFILL if prefill else DECODE
        self._limit_ns = int(itl_limit_ms * 1e6)
        self._begun = self._last_begun = self._last_ended = 0
        self._computed = False
        self._share_of_cores = CoreShare()
        self._threads = num_cores
        self._beside_prefill = False
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(self._file, NUM_SLOTS * SLOT_BYTES)
            self._slot = self._free_slot()
            self._map = mmap.mmap(self._file, NUM_SLOTS * SLOT_BYTES)
        except BaseException:
            os.close(self._file)
            raise
        self._words = memoryview(self._map).cast("Q")
        self.rest()

    @property
    def claims(self) -> Claims:
        """What decode steps claim just now; prefill's kernels read it while they run. After ``close`` it is gone."""
        first = ctypes.addressof(ctypes.c_uint64.from_buffer(self._map)) + 8 * CLAIM
        return Claims(first, NUM_SLOTS, SLOT_WORDS, self._num_cores)

    def pause(self) -> float:
        """A step is to begin; returns for how many seconds it should wait before it asks again, 0 if it may begin."""
        now = time.monotonic_ns()
        self._put(KIND, self._kind)
        self._put(ALIVE, now)
        if self._kind != DECODE or not self._others(PREFILL):
            return 0.0
        return min(POLL_NS, max(0, self._last_ended + self._gap() - now)) / 1e9

    def begin(self, num_prompts: int = 0) -> int:
        """A step begins; returns how many threads it may have. ``num_prompts`` are still to be computed here."""
        self._put(KIND, self._kind)
        self._computed = False
        self._begun = time.monotonic_ns()
        self._put(ALIVE, self._begun)
        if self._kind == PREFILL:
            self._put(PROMPTS, num_prompts)
            return self._share(len(self._others(PREFILL)))
        self._beside_prefill = bool(self._others(PREFILL))
        takes_all = self._beside_prefill and self._share_of_cores.takes_all
        self._threads = self._share(len(self._others(DECODE if takes_all else DECODE | PREFILL)))
        self._put(CLAIM, self._threads)
        return self._threads

    def layers_done(self) -> int:
        """Some layers of the step are computed; returns ``num_claimed``."""
        self._computed = True
        self._put(ALIVE, time.monotonic_ns())
        return self.num_claimed()

    def num_claimed(self) -> int:
        """How many cores decode steps claim from prefill; claims of those that are stopped or gone are struck off."""
        if self._kind == DECODE:
            return 0
        now = time.monotonic_ns()
        claimed = 0
        for slot, claim in enumerate(self._words[CLAIM::SLOT_WORDS].tolist()):
            if claim and abs(now - self._word(slot, ALIVE)) > STALE_NS:
                self._words[slot * SLOT_WORDS + CLAIM] = 0
            else:
                claimed += claim
        return claimed

    def end(self) -> None:
        """The step is over. If it computed nothing, streams have waited since the one before."""
        self._put(CLAIM, 0)
        if not self._computed:
            return
        self._last_begun, self._last_ended = self._begun, time.monotonic_ns()
        if self._beside_prefill:
            self._share_of_cores.learn(self._last_ended - self._begun, self._threads)

    def rest(self) -> None:
        """There is no work: the cores are others', and no stream waits for its next token."""
        self._last_begun = self._last_ended = 0
        self._put(CLAIM, 0)
        self._put(PROMPTS, 0)
        self._put(ALIVE, 0)

    def close(self) -> None:
        """Give the slot back."""
        self.rest()
        self._words.release()
        self._map.close()
        os.close(self._file)

    def _gap(self) -> int:
        """Nanoseconds between two decode steps in which prefill has all cores."""
        took = self._last_ended - self._last_begun
        num_prompts = sum(self._word(slot, PROMPTS) for slot in self._others(PREFILL))
        return int(prompt_time(self._limit_ns, took, num_prompts))

    def _share(self, num_others: int) -> int:
        return max(1, self._num_cores // (1 + num_others))

    def _others(self, kind: int = DECODE | PREFILL) -> list[int]:
        """Slots of other workers of a kind that have work."""
        now = time.monotonic_ns()
        return [
            slot
            for slot, alive in enumerate(self._words[ALIVE::SLOT_WORDS].tolist())
            if alive and slot != self._slot and abs(now - alive) < STALE_NS and self._word(slot, KIND) & kind
        ]

    def _word(self, slot: int, word: int) -> int:
        return self._words[slot * SLOT_WORDS + word]

    def _put(self, word: int, value: int) -> None:
        self._words[self._slot * SLOT_WORDS + word] = value

    def _free_slot(self) -> int:
        for slot in range(NUM_SLOTS):
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
            except (BlockingIOError, PermissionError):
                continue
            return slot
        raise OSError(f"{NUM_SLOTS} workers share the page already")
