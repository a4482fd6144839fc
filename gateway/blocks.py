"""One answer cut into blocks: words, reasoning and calls, as they begin, grow and end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gateway.chat_reading import ChatReading
from gateway.tool_calls.segments import CallArguments, CallStart, Reasoning, Segment
from gateway.transcript import Piece


class Kind(StrEnum):
    """What a block holds."""

    TEXT = "text"
    REASONING = "reasoning"
    CALL = "call"


@dataclass(slots=True)
class Block:
    """The ``number``-th of an answer, counted from 0. ``name`` is a call's function; its text is its arguments."""

    number: int
    kind: Kind
    name: str = ""
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of it so far."""
        return "".join(self.parts)


@dataclass(frozen=True, slots=True)
class Began:
    """A block is new; the one before has ended."""

    block: Block


@dataclass(frozen=True, slots=True)
class Grew:
    """A block has more ``text``, which isn't empty."""

    block: Block
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A block is complete, or the answer is cut off here."""

    block: Block


Step = Began | Grew | Ended


class Blocks:
    """Reads one choice. Neighbors of one kind are one block, each call is one of its own; none of words is empty."""

    def __init__(self, reading: ChatReading) -> None:
        self._reading = reading
        self.all: list[Block] = []
        self._open: Block | None = None

    @property
    def num_calls(self) -> int:
        """Calls so far."""
        return self._reading.num_calls

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens so far that the model said to itself."""
        return self._reading.num_reasoning_tokens

    def read(self, piece: Piece) -> list[Step]:
        """What a piece changes; with the choice's last one the open block ends."""
        steps: list[Step] = []
        for segment in self._reading.read(piece):
            self._take(segment, steps)
        if piece.finish_reason:
            self._end(steps)
        return steps

    def _take(self, segment: Segment, steps: list[Step]) -> None:
        if isinstance(segment, CallStart):
            self._begin(Kind.CALL, steps, segment.name)
            return
        if not segment.text:
            return
        kind = _kind(segment)
        if self._open is None or self._open.kind is not kind:
            self._begin(kind, steps)
        assert self._open is not None
        self._open.parts.append(segment.text)
        steps.append(Grew(self._open, segment.text))

    def _begin(self, kind: Kind, steps: list[Step], name: str = "") -> None:
        self._end(steps)
        self._open = Block(len(self.all), kind, name)
        self.all.append(self._open)
        steps.append(Began(self._open))

    def _end(self, steps: list[Step]) -> None:
        if self._open is not None:
            steps.append(Ended(self._open))
            self._open = None


def _kind(segment: Segment) -> Kind:
    if isinstance(segment, CallArguments):
        return Kind.CALL
    return Kind.REASONING if isinstance(segment, Reasoning) else Kind.TEXT
