"""Sets of ids as bits."""

from __future__ import annotations

import numpy as np
import pytest

from engine.id_masks import mask_of, mask_without


def ids_in(words: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> list[int]:
    return [32 * place + bit for place, word in enumerate(words.tolist()) for bit in range(32) if word >> bit & 1]


def test_a_mask_has_the_ids_of_the_vocabulary_and_no_others() -> None:
    assert ids_in(mask_of((0, 31, 32, 69, 70, 5000), 70)) == [0, 31, 32, 69]
    assert ids_in(mask_of((), 70)) == []


def test_what_is_without_ids_has_all_others() -> None:
    left = ids_in(mask_without(frozenset((0, 33, 5000)), 70))
    assert [each for each in range(70) if each not in left] == [0, 33]


def test_a_kept_mask_cannot_be_written() -> None:
    for mask in (mask_of((1,), 70), mask_without(frozenset((1,)), 70)):
        with pytest.raises(ValueError, match="read-only"):
            mask[0] = 0
