"""How chat and text completions word a choice."""

from typing import Protocol

from gateway.answer import Json
from gateway.prompt_scores import Scores
from gateway.transcript import Piece


class Shape(Protocol):
    """How one endpoint words a choice. ``scores`` are the prompts', once they are known."""

    scores: list[Scores]

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
