"""Events come out of a byte stream whole, with their times, however the bytes were cut."""

from __future__ import annotations

import pytest

from bench.events import MAX_LINE_BYTES, LineTooLongError, events

STREAM = b'data: {"a": 1}\n\n: a comment\nevent: x\ndata: two\ndata: lines\n\ndata:[DONE]\n\n'
DATA = [b'{"a": 1}', b"two\nlines", b"[DONE]"]


def data_of(chunks: list[bytes]) -> list[bytes]:
    return [data for _, data in events((float(i), chunk) for i, chunk in enumerate(chunks))]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_events_are_the_same_wherever_the_stream_was_cut(end: bytes) -> None:
    stream = STREAM.replace(b"\n", end)
    for place in range(len(stream) + 1):
        assert data_of([stream[:place], stream[place:]]) == DATA
    assert data_of([stream[i : i + 1] for i in range(len(stream))]) == DATA


def test_an_event_has_the_time_of_the_chunk_that_ended_it() -> None:
    chunks = [(1.0, b"data: a\n\ndata: b"), (2.0, b"\n"), (3.0, b"\ndata: c\n\n")]
    assert list(events(chunks)) == [(1.0, b"a"), (3.0, b"b"), (3.0, b"c")]


def test_what_stands_last_without_a_blank_line_counts_only_if_the_stream_ended() -> None:
    chunks = [(1.0, b"data: a\n\ndata: b")]
    assert list(events(chunks)) == [(1.0, b"a"), (1.0, b"b")]
    assert list(events(chunks, to_end=False)) == [(1.0, b"a")]


def test_a_line_without_end_is_refused() -> None:
    with pytest.raises(LineTooLongError):
        list(events([(0.0, b"data: " + b"x" * MAX_LINE_BYTES)]))
