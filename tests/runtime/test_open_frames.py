"""Frames in parts: whole or not at all, from one sender, within bounds."""

import pytest

from protocol.errors import WireError
from protocol.messages import Part, Peer
from runtime import open_frames
from runtime.open_frames import OpenFrames

P, Q = Peer("prefill-1", "1"), Peer("prefill-2", "1")


def test_a_frame_is_whole_with_its_last_missing_part_in_any_order() -> None:
    frames = OpenFrames()
    assert frames.add(P, Part("f", 2, 3, b"c")) is None
    assert frames.add(P, Part("f", 0, 3, b"a")) is None
    assert frames.add(P, Part("f", 0, 3, b"a")) is None
    assert frames.add(P, Part("f", 1, 3, b"b")) == b"abc"
    assert (len(frames), frames.num_bytes) == (0, 0)


def test_parts_of_two_senders_never_mix() -> None:
    frames = OpenFrames()
    assert frames.add(P, Part("f", 0, 2, b"a")) is None
    assert frames.add(Q, Part("f", 1, 2, b"b")) is None
    assert frames.add(P, Part("f", 1, 2, b"z")) == b"az"


@pytest.mark.parametrize(
    "part",
    [
        Part("f", 0, 0, b""),
        Part("f", -1, 2, b""),
        Part("f", 2, 2, b""),
        Part("f", 0, 1 << 40, b"x"),
        Part("f", 0, 1000, b"x" * (1 << 20)),
        Part("f" * 100, 0, 2, b"x"),
    ],
)
def test_a_part_that_cant_be_is_refused_and_leaves_nothing(part: Part) -> None:
    frames = OpenFrames()
    with pytest.raises(WireError, match="out of bounds"):
        frames.add(P, part)
    assert (len(frames), frames.num_bytes) == (0, 0)


def test_a_part_that_counts_its_frame_otherwise_is_refused() -> None:
    frames = OpenFrames()
    frames.add(P, Part("f", 5, 10, b"x"))
    with pytest.raises(WireError, match="belongs to a frame of 10"):
        frames.add(P, Part("f", 0, 2, b"x"))


def test_the_oldest_frame_goes_when_there_are_too_many_or_they_hold_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_frames, "MAX_OPEN_FRAMES", 3)
    frames = OpenFrames()
    for number in range(10):
        frames.add(P, Part(str(number), 0, 2, b"x"))
    assert len(frames) == 3
    assert frames.add(P, Part("9", 1, 2, b"y")) == b"xy"
    monkeypatch.setattr(open_frames, "MAX_OPEN_BYTES", 1000)
    for index in range(100):  # one frame of many tiny parts
        frames.add(P, Part("tiny", index, 1000, b""))
        assert frames.num_bytes <= 1000
