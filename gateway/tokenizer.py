"""Text to token ids, and what each id stands for; `tokenizers` alone, so that torch stays out."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from gateway.errors import ModelFolderError
from gateway.token_bytes import piece_decoder

LONG_TEXT_CHARS = 4096
"""Longer texts are tokenized in a thread: about 2 ms of the event loop's time."""

_PROBE = "Hello, world! \u00fcber 12 \u4f60\u597d \U0001f980 \u0645\u0631\u062d\u0628\u0627\n\tend"


class TextTokenizer:
    """A model's tokenizer. Immutable, safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, special_texts: frozenset[str] = frozenset()) -> None:
        """Take ``special_texts`` as special too (begin and end of text).

        Raises ``ModelFolderError`` when its ids can't be turned into text exactly.
        """
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        description = json.loads(tokenizer.to_str())
        to_bytes = piece_decoder(description["decoder"])
        if to_bytes is None:
            raise ModelFolderError("tokenizer.json has a decoder of another kind than byte-level or SentencePiece")
        self._to_bytes = to_bytes
        self._bytes: dict[int, bytes] = {}
        added = tokenizer.get_added_tokens_decoder()
        named = {tokenizer.token_to_id(text) for text in special_texts} - {None}
        self._special = frozenset({token_id for token_id, token in added.items() if token.special} | named)
        self.max_token_bytes = _max_token_bytes(tokenizer, description)
        self._check()

    @classmethod
    def load(cls, folder: Path, special_texts: frozenset[str] = frozenset()) -> "TextTokenizer":
        """Read the folder's tokenizer.json.

        Raises ``ModelFolderError``: there is none, or not a readable one.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelFolderError(f"no tokenizer.json in {folder}")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing more exact
            raise ModelFolderError(f"{path} can't be read: {error}") from error
        return cls(tokenizer, special_texts)

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def to_json(self) -> str:
        """Return it as a tokenizer.json holds it."""
        text: str = self._tokenizer.to_str()
        return text

    def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """Return token ids; special tokens written in the text are read as such."""
        # encode_batch_fast lets other threads run meanwhile and computes no offsets; encode doesn't
        batch = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return tuple(batch[0].ids)

    async def encode_aside(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """Encode without holding up the event loop for long."""
        if len(text) <= LONG_TEXT_CHARS:
            return self.encode(text, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(self.encode, text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return their text as the library writes it, special tokens included; unused ids are no text."""
        text: str = self._tokenizer.decode_batch([list(token_ids)], skip_special_tokens=False)[0]
        return text

    def entry(self, token_id: int) -> str:
        """Return the vocabulary's own writing of a token, such as ``\u0120hello``; "" for an unused id."""
        return self._tokenizer.id_to_token(token_id) or ""

    def fewest_tokens(self, text: str) -> int:
        """Return a number of tokens that ``text`` has at least, found without tokenizing."""
        return len(text) // self.max_token_bytes if self.max_token_bytes else 0

    def token_id(self, text: str) -> int | None:
        """Return the id of the token whose vocabulary entry is ``text``."""
        return self._tokenizer.token_to_id(text)

    def is_special(self, token_id: int) -> bool:
        """Say whether the token is no text: begin, end, role marks."""
        return token_id in self._special

    def token_bytes(self, token_id: int) -> bytes:
        """Return its part of the text, maybe a part of a character; b"" for an unused id."""
        known = self._bytes.get(token_id)
        if known is None:
            piece = self._tokenizer.id_to_token(token_id)
            known = self._bytes[token_id] = b"" if piece is None else self._to_bytes(piece)
        return known

    def _check(self) -> None:
        """Compare our reading of ids with the library's, but for a first space that some drop."""
        ids = self.encode(_PROBE, add_special_tokens=False)
        ours = b"".join(self.token_bytes(token_id) for token_id in ids).decode("utf-8", "replace")
        theirs = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        if ours.removeprefix(" ") != theirs.removeprefix(" "):
            raise ModelFolderError("tokenizer.json decodes in a way that isn't supported")


def _max_token_bytes(tokenizer: Tokenizer, description: dict[str, object]) -> int:
    """Return the most bytes of text that one token can stand for; 0 if that can't be told."""
    swallows = any(token.lstrip or token.rstrip for token in tokenizer.get_added_tokens_decoder().values())
    if swallows or "ByteLevel" not in str(description["decoder"]) or description["normalizer"]:
        return 0
    return max(len(piece.encode("utf-8")) for piece in tokenizer.get_vocab(with_added_tokens=True))
