"""What a model's text consists of, once it is read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    """Words for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Words that the model said to itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The ``index``-th call of the text, counted from 0, begins. ``name`` isn't empty and can be written as UTF-8."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of a call's arguments: JSON text in the model's own spelling. It follows its ``CallStart``."""

    index: int
    text: str


Segment = Content | Reasoning | CallStart | CallArguments


class Reader(Protocol):
    """Reads one text. All segments ``joined`` depend on the text alone, however it is cut into pieces."""

    def push(self, text: str) -> list[Segment]:
        """Segments that no later text can change."""

    def finish(self) -> list[Segment]:
        """What was held back, at the end of the text."""


def joined(segments: Sequence[Segment]) -> list[Segment]:
    """Return the same with neighbors of one kind, and of one call, made one."""
    if len(segments) < 2:
        return list(segments)
    runs: list[list[Segment]] = []
    for segment in segments:
        if runs and _goes_on(runs[-1][-1], segment):
            runs[-1].append(segment)
        else:
            runs.append([segment])
    return [_one(run) for run in runs]


def _goes_on(before: Segment, after: Segment) -> bool:
    if isinstance(before, CallArguments):
        return isinstance(after, CallArguments) and before.index == after.index
    return type(before) is type(after) and not isinstance(before, CallStart)


def _one(run: list[Segment]) -> Segment:
    first = run[0]
    if isinstance(first, CallStart) or len(run) == 1:
        return first
    text = "".join(each.text for each in run if not isinstance(each, CallStart))
    return CallArguments(first.index, text) if isinstance(first, CallArguments) else type(first)(text)
