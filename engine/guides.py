"""Grammars of outputs, compiled for one model's tokens aside from the steps, and kept for whoever asks again.

The library is llguidance (ADR 0019). Making a matcher drops the interpreter's lock; making its tokenizer doesn't, and
takes some tenths of a second, so that is done once, while nobody waits for a step.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine.guide import GrammarError, Guide, first_line

MAX_KEPT = 32
"""Compiled grammars that are kept; one of many states takes some megabytes."""

LIMITS = LLParserLimits(
    initial_lexer_fuel=100_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    max_lexer_states=5_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
"""Ten milliseconds to compile and to find out what may follow, about; and 10 MB."""


class Guides:
    """Makes guides for one vocabulary. Futures are done by a thread of its own."""

    def __init__(self, tokenizer: str, vocab_size: int, limits: LLParserLimits = LIMITS) -> None:
        """``tokenizer`` is what a tokenizer.json holds; it is read when it is needed, or by ``prepare``."""
        self._text = tokenizer
        self._vocab_size = vocab_size
        self._limits = limits
        self._tokenizer: LLTokenizer | None = None
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()
        self._aside = ThreadPoolExecutor(1, "grammar")

    @classmethod
    def load(cls, folder: Path, vocab_size: int) -> Guides:
        """Guides for a model's folder. Raises ``GrammarError`` if it has no tokenizer.json."""
        try:
            return cls((folder / "tokenizer.json").read_text(encoding="utf-8"), vocab_size)
        except (OSError, ValueError) as error:
            raise GrammarError(f"its tokenizer can't be read for grammars: {error}") from error

    def prepare(self) -> LLTokenizer:
        """Read the tokenizer now. Raises ``GrammarError`` if the library can't. Idempotent."""
        if self._tokenizer is None:
            try:
                self._tokenizer = LLTokenizer(self._text, n_vocab=self._vocab_size)
            except Exception as error:  # the library names no other
                raise GrammarError(f"its tokenizer can't be read for grammars: {error}") from error
        return self._tokenizer

    def begin(self, grammar: str, eos_ids: Sequence[int], outputs: Sequence[Sequence[int]]) -> Future[list[Guide]]:
        """A guide for each of ``outputs``, at its end. The future may raise ``GrammarError``."""
        return self._aside.submit(self._make, grammar, tuple(eos_ids), [list(output) for output in outputs])

    def _make(self, grammar: str, eos_ids: tuple[int, ...], outputs: list[list[int]]) -> list[Guide]:
        tokenizer = self.prepare()
        compiled, ends = self._compiled(grammar, tokenizer), frozenset(tokenizer.eos_tokens)
        guides = []
        for output in outputs:
            guide = Guide(compiled.deep_copy(), eos_ids, ends, self._vocab_size)
            for token_id in output:
                guide.accept(token_id)
            guides.append(guide)
        return guides

    def _compiled(self, grammar: str, tokenizer: LLTokenizer) -> LLMatcher:
        kept = self._kept.pop(grammar, None)
        if kept is None:
            kept = LLMatcher(tokenizer, grammar, log_level=0, limits=self._limits)
            if kept.is_error():
                raise GrammarError(f"the grammar can't be compiled: {first_line(kept.get_error())}")
        self._kept[grammar] = kept
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return kept
