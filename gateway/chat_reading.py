"""One choice of a chat as it is read: what is content, what reasoning, what calls of tools."""

import secrets
from dataclasses import dataclass

from gateway.tool_calls.segments import CallArguments, CallStart, Content, Reader, Reasoning, Segment
from gateway.transcript import Piece


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """``parallel``: more than one call counts. ``shows_reasoning``: or drops it."""

    parallel: bool = True
    shows_reasoning: bool = True


class ChatReading:
    """Reads the pieces of one choice in order. Without a ``reader`` all is content."""

    def __init__(self, reader: Reader | None, rules: ReadingRules) -> None:
        self._reader = reader
        self._rules = rules
        self.num_calls = 0
        self.num_reasoning_tokens = 0

    def read(self, piece: Piece) -> list[Segment]:
        """What a piece adds."""
        if self._reader is None:
            return [Content(piece.text)] if piece.text else []
        was_inside = self._is_inside
        segments = self._reader.push(piece.text) if piece.text else []
        if was_inside or self._is_inside:
            self.num_reasoning_tokens = piece.num_tokens
        if piece.finish_reason:
            segments += self._reader.finish()
        return [segment for segment in segments if self._counts(segment)]

    @property
    def _is_inside(self) -> bool:
        return bool(getattr(self._reader, "inside", False))

    def _counts(self, segment: Segment) -> bool:
        if isinstance(segment, CallStart):
            self.num_calls += self._is_wanted(segment.index)
            return self._is_wanted(segment.index)
        if isinstance(segment, CallArguments):
            return self._is_wanted(segment.index)
        return not isinstance(segment, Reasoning) or self._rules.shows_reasoning

    def _is_wanted(self, index: int) -> bool:
        return index == 0 or self._rules.parallel


def new_call_id() -> str:
    """A call's id, unique without asking anybody."""
    return f"call_{secrets.token_hex(12)}"
