"""Tokens chosen from rows of logits, all rows of a step in one call.

Of the ids that a row's mask allows the likeliest is the one of the highest logit, of equal ones the lowest; a row of
temperature 0, or of top_k 1, gets it. Else a token is drawn:

1. An id's weight is ``exp((logit - peak) / temperature)``, where ``peak`` is the likeliest's logit: computed in
   float32, to two millionths of itself, and rounded to a whole number of units of 2 ** -44. What rounds to none is out.
2. Order ids by logit, highest first, equal ones by id. top_k keeps the first k; top_p of those the shortest beginning
   whose weights reach ``top_p`` times the sum of all that top_k kept; min_p of those the ones of at least ``min_p``
   times the likeliest's weight.
3. Sum up the kept weights in id order; the token is the first id whose sum reaches ``number`` times the last sum.

Sums are of whole numbers, so exact; what they must reach is a product in float64, rounded up. A token is a function
of its row and its choice alone, the same bits with each compiled library, the twin, and any number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvferry_kernels import ops, sampling_reference
from kvferry_kernels.sampling_reference import Choice, Floats, Whole, Words

NONE_LEFT = -1
"""Instead of a token: the mask allows none whose logit is above minus infinity."""

NOT_FINITE = -2
"""Instead of a token: a number of the row, allowed or not, is NaN, or its highest is infinite."""

MAX_VOCAB = (1 << 19) - 1
"""Ids whose weights still have a sum below 2 ** 63."""


_RECORD = np.dtype([(name, np.int64 if name in ("row", "mask", "top_k") else np.float64) for name in Choice._fields])
"""As struct choice of cpu/sampling.h."""


def choose_tokens(
    logits: Floats, choices: Sequence[Choice], masks: Sequence[Words] = (), more: Floats | None = None
) -> list[int]:
    """Choose a token for each of ``choices``, or NONE_LEFT, or NOT_FINITE.

    ``logits`` ``[num_rows, vocab]``; ``more`` ``[any, vocab]`` are further rows, numbered after them. Each of
    ``masks``, ``[num_words(vocab)]``, has a bit for each id that is allowed, the lowest first; bits beyond the
    vocabulary don't count.
    ValueError for arrays that don't fit each other, IndexError for a row or mask that isn't there.
    """
    _check(logits, choices, masks, more)
    if ops.KERNELS is None:
        return sampling_reference.choose_tokens(logits, choices, masks, more)
    tokens: Whole = np.empty(len(choices), np.int64)
    records = np.array(choices, _RECORD)
    words = np.stack(masks) if masks else None
    failed = ops.KERNELS.library.kvferry_choose_tokens(
        tokens.ctypes.data,
        logits.ctypes.data,
        _pointer(more),
        len(logits),
        logits.shape[1],
        _pointer(words),
        records.ctypes.data,
        len(records),
    )
    if failed:
        raise MemoryError("no memory for choosing tokens")
    made: list[int] = tokens.tolist()
    return made


def num_words(vocab_size: int) -> int:
    """Of a mask."""
    return -(-vocab_size // 32)


def _check(logits: Floats, choices: Sequence[Choice], masks: Sequence[Words], more: Floats | None) -> None:
    vocab_size = logits.shape[1]
    rows = [logits] if more is None else [logits, more]
    if not 0 < vocab_size <= MAX_VOCAB:
        raise ValueError(f"a vocabulary of {vocab_size}")
    if any(each.dtype != np.float32 or each.shape[1] != vocab_size or not each.flags.c_contiguous for each in rows):
        raise ValueError("logits must be contiguous rows of float32")
    if any(mask.dtype != np.uint32 or mask.shape != (num_words(vocab_size),) for mask in masks):
        raise ValueError("a mask must have 32 bits for each 32 ids")
    num_rows = sum(len(each) for each in rows)
    if any(not (0 <= each.row < num_rows and -1 <= each.mask < len(masks)) for each in choices):
        raise IndexError("a choice of a row or mask that isn't there")


def _pointer(array: npt.NDArray[np.generic] | None) -> int | None:
    return None if array is None else array.ctypes.data
