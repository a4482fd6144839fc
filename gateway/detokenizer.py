"""From token ids to text, one token at a time, never splitting a character."""

import codecs
from collections.abc import Collection

from gateway.tokenizer import TextTokenizer

_NEW_UTF8_DECODER = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Text of one choice. All ``push`` results joined are the bytes of its tokens read as UTF-8.

    Bytes of an incomplete character are kept until the rest comes; those at the end of the output
    are left out. Bytes that can never be a character become U+FFFD. The work of a token depends
    on its own length alone.
    """

    def __init__(self, tokenizer: TextTokenizer, *, skip_special_tokens: bool, shown_ids: Collection[int] = ()) -> None:
        """``shown_ids`` are never skipped."""
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._shown_ids = shown_ids
        self._decoder = _NEW_UTF8_DECODER("replace")

    def push(self, token_id: int) -> str:
        """Text that this token completes; "" for a part of a character or a hidden token."""
        if self._skip_special_tokens and self._tokenizer.is_special(token_id) and token_id not in self._shown_ids:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    @property
    def inside_character(self) -> bool:
        """Whether bytes of an incomplete character wait."""
        return bool(self._decoder.getstate()[0])
