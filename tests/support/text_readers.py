"""Readers of tool calls, fed with a text in one piece and in many."""

from collections.abc import Callable, Iterable
from itertools import pairwise

from hypothesis import strategies as st

from gateway.tool_calls.segments import CallArguments, CallStart, Content, Reader, Reasoning, Segment, joined

CUTS = st.sets(st.integers(1, 200), max_size=12)


def call(index: int, name: str, arguments: str) -> list[Segment]:
    """Return what a call is read as."""
    return [CallStart(index, name), CallArguments(index, arguments)]


def read(reader: Reader, pieces: Iterable[str]) -> list[Segment]:
    """Push all pieces and finish."""
    segments = [segment for piece in pieces for segment in reader.push(piece)]
    segments += reader.finish()
    assert all(isinstance(each, CallStart) or each.text for each in segments)
    return joined(segments)


def cut(text: str, places: Iterable[int]) -> list[str]:
    """Return the text in pieces."""
    borders = sorted({0, len(text), *(place for place in places if place < len(text))})
    return [text[start:end] for start, end in pairwise(borders)]


def read_in_all_ways(new_reader: Callable[[], Reader], text: str) -> list[Segment]:
    """Read it whole, in two pieces cut at every place, and by character: the same in all ways."""
    whole = read(new_reader(), [text])
    assert read(new_reader(), text) == whole
    for place in range(len(text)):
        assert read(new_reader(), cut(text, [place])) == whole, place
    return whole


def content_of(segments: list[Segment]) -> str:
    """Return all content."""
    return "".join(each.text for each in segments if isinstance(each, Content))


def reasoning_of(segments: list[Segment]) -> str:
    """Return all reasoning."""
    return "".join(each.text for each in segments if isinstance(each, Reasoning))


def check_nothing_is_lost(text: str, segments: list[Segment]) -> None:
    """Content is a part of the text in its order, and all of it where no call was told; so are arguments."""
    rest = iter(text)
    assert all(char in rest for char in content_of(segments))
    starts = [each for each in segments if isinstance(each, CallStart)]
    assert [each.index for each in starts] == list(range(len(starts)))
    if not starts:
        assert content_of(segments) == text
    for each in segments:
        assert not isinstance(each, CallArguments) or each.text == "{}" or each.text in text
