"""Sets of ids as bits, 32 in a word, the lowest first: what the kernels and llguidance take."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from kvferry_kernels.sampling import num_words

Words = npt.NDArray[np.uint32]

MAX_KEPT = 64
"""Masks that are kept for who asks again, of 6 KB each for 49,152 ids."""


@lru_cache(maxsize=MAX_KEPT)
def mask_of(ids: frozenset[int] | tuple[int, ...], vocab_size: int) -> Words:
    """Just these of ``vocab_size`` ids, ``[num_words]``, not to be written; others don't count."""
    return _read_only(_bits(ids, vocab_size))


@lru_cache(maxsize=MAX_KEPT)
def mask_without(ids: frozenset[int] | tuple[int, ...], vocab_size: int) -> Words:
    """All ids but these."""
    return _read_only(~_bits(ids, vocab_size))


def _bits(ids: Iterable[int], vocab_size: int) -> Words:
    words = np.zeros(num_words(vocab_size), np.uint32)
    for each in ids:
        if each < vocab_size:
            words[each // 32] |= np.uint32(1 << each % 32)
    return words


def _read_only(words: Words) -> Words:
    words.setflags(write=False)
    return words
