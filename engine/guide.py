"""One choice's place in the grammar of its output: which tokens may come next."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from llguidance import LLMatcher

from engine.errors import EngineError
from engine.id_masks import Words, mask_of, mask_without
from kvferry_kernels.sampling import num_words

NOTHING_FOLLOWS = "NoExtension"
"""So the library's error begins for a schema that no value meets."""


class GrammarError(EngineError):
    """A grammar that can't be followed: not one, too large, or too complex at some place of the output."""


class Guide:
    """Belongs to one choice, of whose output it has read every token."""

    def __init__(self, matcher: LLMatcher, eos_ids: Sequence[int], ends: Collection[int], vocab_size: int) -> None:
        """``eos_ids`` may be chosen where the output could end, and no other of ``ends``, which are the tokenizer's.

        ``vocab_size``: ids are below it.
        """
        self._matcher = matcher
        self._eos_ids = frozenset(eos_ids)
        self._eos_mask = mask_of(self._eos_ids, vocab_size)
        self._no_end = mask_without(self._eos_ids.union(ends), vocab_size)
        self._words: Words = np.empty(num_words(vocab_size), np.uint32)
        self._address = self._words.ctypes.data
        self._is_known = False

    def allowed(self) -> Words:
        """Which ids may come next, as bits (see id_masks.py), until ``accept`` is called; not to be written.

        Raises ``GrammarError`` where that takes too long to find out.
        """
        if not self._is_known:
            self._matcher.unsafe_compute_mask_ptr(self._address, self._words.nbytes)
            self._check()
            self._words &= self._no_end
            if self._matcher.is_accepting():
                self._words |= self._eos_mask
            self._is_known = True
        return self._words

    def accept(self, token_id: int) -> None:
        """``token_id`` was chosen. Raises ``GrammarError`` if it can't follow."""
        self._is_known = False
        if token_id not in self._eos_ids and not self._matcher.consume_token(token_id):
            self._check()
            raise GrammarError(f"token {token_id} can't follow in the grammar")

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end can follow."""
        return self._matcher.is_stopped()

    def _check(self) -> None:
        if not self._matcher.is_error():
            return
        reason = first_line(self._matcher.get_error())
        if reason.startswith(NOTHING_FOLLOWS):
            reason = "nothing can come next, and the output can't end either"
        raise GrammarError(f"the grammar can't be followed: {reason}")


def first_line(text: str) -> str:
    """What of a library's error concerns a client."""
    return text.strip().split("\n", 1)[0][:300]
