"""A sender's memory: places don't overlap, come back when freed, and say themselves whether they are still valid."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtransfer.segment import ALIGNMENT, NUMBER_BYTES, Place, Segment, SegmentReader

SIZE = 16 << 10


@pytest.fixture
def segment() -> Iterator[Segment]:
    made = Segment(SIZE)
    yield made
    made.close()


def put(segment: Segment, data: bytes) -> Place | None:
    return segment.put([data], len(data))


def read(segment: Segment, place: Place) -> bytes | None:
    reader = SegmentReader(os.dup(segment.fd))
    into = memoryview(bytearray(NUMBER_BYTES + place.num_bytes))
    valid = reader.read(place, into)
    reader.close()
    return bytes(into[NUMBER_BYTES:]) if valid else None


def test_a_frame_is_read_as_it_was_written(segment: Segment) -> None:
    place = segment.put([b"ab", memoryview(b"cd"), b""], 4)
    assert place is not None
    assert read(segment, place) == b"abcd"


def test_whoever_has_the_descriptor_reads_the_random_number(segment: Segment) -> None:
    reader = SegmentReader(os.dup(segment.fd))
    assert reader.proof() == segment.proof
    reader.close()
    other = Segment(SIZE)
    assert other.proof != segment.proof
    other.close()


@given(st.lists(st.tuples(st.integers(0, 3000), st.booleans()), max_size=60))
def test_what_is_held_is_never_written_over(steps: list[tuple[int, bool]]) -> None:
    segment = Segment(SIZE)
    held: list[tuple[Place, bytes]] = []
    for number, (size, free_one) in enumerate(steps):
        data = bytes([number]) * size
        place = put(segment, data)
        if place is not None:
            held.append((place, data))
        if free_one and held:
            segment.free(held.pop(size % len(held))[0])
        for kept, was in held:
            assert read(segment, kept) == was
    for kept, _ in held:
        segment.free(kept)
    assert segment.held_bytes == 0
    assert put(segment, bytes(SIZE - ALIGNMENT - NUMBER_BYTES)) is not None, "all gaps are one again"
    segment.close()


def test_a_full_segment_says_so_and_has_room_again_when_places_are_freed(segment: Segment) -> None:
    places = []
    while (place := put(segment, bytes(1000))) is not None:
        places.append(place)
    assert len(places) == SIZE // 1024 - 1
    segment.free(places[3])
    assert put(segment, bytes(1100)) is None
    segment.free(places[4])
    again = put(segment, bytes(1100))
    assert again is not None
    assert again.offset == places[3].offset


def test_many_times_its_size_passes_through(segment: Segment) -> None:
    before = None
    for number in range(100):
        data = os.urandom(700 + 37 * number % 900)
        place = put(segment, data)
        assert place is not None
        assert read(segment, place) == data
        if before is not None:
            segment.free(before)
        before = place
    assert segment.held_bytes < 2048


def test_a_reader_that_comes_too_late_finds_that_the_place_is_nobodys_or_anothers(segment: Segment) -> None:
    first = put(segment, b"one")
    assert first is not None
    segment.free(first)
    assert read(segment, first) is None
    second = put(segment, b"two")
    assert second is not None
    assert second.offset == first.offset
    assert read(segment, first) is None
    assert read(segment, second) == b"two"


def test_a_place_that_is_given_away_while_it_is_read_is_not_taken_for_valid(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = put(segment, b"one")
    assert first is not None
    real = os.preadv

    def slow(fd: int, buffers: list[memoryview], offset: int) -> int:
        count = real(fd, buffers, offset)
        segment.free(first)
        assert put(segment, b"two") is not None
        return count

    monkeypatch.setattr(os, "preadv", slow)
    assert read(segment, first) is None


@pytest.mark.parametrize("offset", [-1, SIZE - 8, SIZE, 1 << 40, (1 << 63) - 1])
def test_a_place_outside_is_not_read(segment: Segment, offset: int) -> None:
    assert read(segment, Place(1, offset, 100)) is None


def test_no_number_is_never_valid(segment: Segment) -> None:
    assert read(segment, Place(0, 1024, 100)) is None


@pytest.mark.parametrize("how", ["error", "short"])
def test_memory_that_cant_be_had_is_an_error_and_leaves_no_place_taken(
    segment: Segment, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def full(fd: int, buffers: list[bytes], offset: int) -> int:
        if how == "error":
            raise OSError(errno.ENOSPC, "no space")
        return 3

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(OSError, match=r"no space|3 bytes"):
        put(segment, bytes(100))
    assert segment.held_bytes == 0
