"""One choice's place in the grammar of its output: which tokens may come next."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from engine.errors import EngineError

Bools = npt.NDArray[np.bool_]


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
        self._eos_ids = [token for token in eos_ids if token < vocab_size]
        self._never = [token for token in ends if token < vocab_size and token not in eos_ids]
        self._vocab_size = vocab_size
        self._allowed: Bools | None = None

    def allowed(self) -> Bools:
        """Which ids may come next, ``[vocab]``. Raises ``GrammarError`` where that takes too long to find out."""
        if self._allowed is None:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            self._check()
            allowed = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
            allowed[self._eos_ids] = self._matcher.is_accepting()
            allowed[self._never] = False
            self._allowed = allowed
        return self._allowed

    def accept(self, token_id: int) -> None:
        """``token_id`` was chosen. Raises ``GrammarError`` if it can't follow."""
        self._allowed = None
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
