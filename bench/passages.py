"""Prompts: passages of real text, cut to an exact number of tokens."""

import random
import re
from pathlib import Path
from typing import Any

from bench.errors import BenchError

MAX_TEXT_BYTES = 64 << 20
"""Longest text file that is read."""

FILLER = " the"
"""One token in every tokenizer that knows English; evens out what a cut inside a word costs."""

_MAX_FILLERS = 8
_SPARE_WORDS = 16
_MAX_TRIES = 50
"""A start whose cut doesn't come out even is given up for another; hardly one in a hundred is."""

_RULES = re.compile(r"([^\w\s])\1{2,}")
"""Drawn lines of punctuation, which no prompt is made of."""


class Passages:
    """Cuts passages of an exact token count out of a long text, each from a word drawn at random."""

    def __init__(self, tokenizer: Any, text: str) -> None:
        """`tokenizer` is a `tokenizers.Tokenizer`; it must neither truncate nor pad."""
        self._tokenizer = tokenizer
        self._words = _RULES.sub(" ", text).split()

    def cut(self, length: int, rng: random.Random, lead: str = "") -> str:
        """Return `lead` and a passage that adds exactly `length` tokens to it.

        The tokens of `lead` are the first of the whole, so that prompts of one lead share a prefix. Raises
        `BenchError` if the text is too short for that.
        """
        num_words = length + _SPARE_WORDS  # a word is one token at the least
        last_start = len(self._words) - num_words
        if last_start < 1:
            raise BenchError(f"the text has {len(self._words)} words, too few for prompts of {length} tokens")
        for _ in range(_MAX_TRIES):
            start = rng.randrange(last_start)
            passage = self._try(length, lead, " ".join(self._words[start : start + num_words]))
            if passage:
                return passage
        raise BenchError(f"no passage of exactly {length} tokens was found; is this tokenizer meant for text?")

    def count(self, text: str) -> int:
        """Return the number of tokens, special ones left out."""
        return len(self._encode(text).ids)

    def _try(self, length: int, lead: str, window: str) -> str:
        whole = f"{lead} {window}" if lead else window
        first = self._encode(lead).ids if lead else []
        goal = len(first) + length
        ends = self._encode(whole).offsets
        for keep in range(min(goal, len(ends)), max(goal - _MAX_FILLERS, len(first)), -1):
            text = whole[: ends[keep - 1][1]]
            missing = goal - self.count(text)
            if 0 <= missing <= _MAX_FILLERS:
                text += FILLER * missing
                ids = self._encode(text).ids
                if len(ids) == goal and ids[: len(first)] == first:
                    return text
        return ""

    def _encode(self, text: str) -> Any:
        return self._tokenizer.encode(text, add_special_tokens=False)


def load_passages(tokenizer: Path, dataset: Path | None) -> Passages:
    """Return passages of `dataset`, or of the reference texts that every CPython carries.

    `tokenizer` is a ``tokenizer.json`` or a folder with one. Raises `BenchError`.
    """
    from tokenizers import Tokenizer

    file = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
    if not file.is_file():
        raise BenchError(f"--tokenizer: {file} is no file")
    try:
        found = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises a bare Exception
        raise BenchError(f"--tokenizer: {file} can't be read ({error!s:.120})") from error
    found.no_truncation()
    found.no_padding()
    return Passages(found, _own_text() if dataset is None else _read(dataset))


def _read(dataset: Path) -> str:
    try:
        with dataset.open("rb") as file:
            raw = file.read(MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise BenchError(f"--dataset: {dataset} can't be read ({error.strerror})") from error
    if len(raw) > MAX_TEXT_BYTES:
        raise BenchError(f"--dataset: {dataset} is longer than {MAX_TEXT_BYTES >> 20} MiB")
    return raw.decode(errors="replace")


def _own_text() -> str:
    from pydoc_data.topics import topics

    text = " ".join(topics[name] for name in sorted(topics))
    return text.encode("ascii", errors="ignore").decode()
