"""How chat and text completions word a choice."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.answer import Json
from gateway.logprobs import completion_logprobs
from gateway.tokenizer import TextTokenizer
from gateway.transcript import Piece


class Shape(Protocol):
    """How one endpoint words a choice."""

    @property
    def id_prefix(self) -> str:
        """Start of an answer's id."""

    @property
    def whole_object(self) -> str:
        """Kind of an unstreamed answer."""

    @property
    def chunk_object(self) -> str:
        """Kind of a stream's events."""

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens so far that the model said to itself, of all choices."""

    def opening(self, choice: int) -> Json | None:
        """Return what a stream says of a choice before its first piece."""

    def piece(self, piece: Piece) -> list[Json]:
        """Return what a stream says of a piece; after a choice's last one its finish reason."""

    def whole(self, pieces: list[Piece]) -> Json:
        """Return a choice in an unstreamed answer, from all its pieces."""

    def once(self) -> Json:
        """Return what an answer, or a stream's first event, says beside its choices."""


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """POST /v1/completions: the same form streamed and not.

    ``prompt_ids``, one prompt for each choice, are told, and choices' own ids with them, unless they are None.
    """

    tokenizer: TextTokenizer
    logprobs: bool
    as_ids: bool = False
    prompt_ids: Sequence[Sequence[int]] | None = None
    id_prefix: str = "cmpl-"
    whole_object: str = "text_completion"
    chunk_object: str = "text_completion"

    def opening(self, choice: int) -> Json | None:
        """Return nothing."""
        return None

    @property
    def num_reasoning_tokens(self) -> int:
        """None: all text is the answer."""
        return 0

    def piece(self, piece: Piece) -> list[Json]:
        """Return text; a finish reason comes without."""
        said = []
        if piece.text or ((piece.tokens or piece.token_ids) and not piece.finish_reason):
            said.append(self._choice(piece, piece.text, bool(piece.tokens), None))
            piece.tokens, piece.token_ids = [], ()
        if piece.finish_reason:
            ending = self._choice(piece, "", bool(piece.tokens), piece.finish_reason)
            said.append({**ending, "stop_reason": piece.stop_reason})
        return said

    def whole(self, pieces: list[Piece]) -> Json:
        """Return all text."""
        piece = joined(pieces)
        choice = self._choice(piece, piece.text, self.logprobs, piece.finish_reason)
        return {**choice, "stop_reason": piece.stop_reason}

    def once(self) -> Json:
        """Return nothing: each choice has its own prompt."""
        return {}

    def _choice(self, piece: Piece, text: str, logprobs: bool, finish_reason: str | None) -> Json:
        told = completion_logprobs(self.tokenizer, piece.tokens, as_ids=self.as_ids) if logprobs else None
        choice = {"index": piece.choice, "text": text, "logprobs": told, "finish_reason": finish_reason}
        if self.prompt_ids is not None:
            choice["token_ids"] = piece.token_ids
            if piece.num_tokens == len(piece.token_ids):  # its first
                choice["prompt_token_ids"] = self.prompt_ids[piece.choice]
        return choice


def joined(pieces: list[Piece]) -> Piece:
    """Return all pieces of one choice as one."""
    last = pieces[-1]
    return Piece(
        last.choice,
        "".join(piece.text for piece in pieces),
        [token for piece in pieces for token in piece.tokens],
        last.num_tokens,
        last.finish_reason,
        last.stop_reason,
        tuple(token_id for piece in pieces for token_id in piece.token_ids),
    )
