"""The codec: every message survives the way, and nothing else gets through."""

import typing
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import MAX_FRAME_BYTES, decode, encode
from protocol.errors import MEANINGS, Code, WireError
from protocol.messages import (
    TAGS,
    Ack,
    AckItem,
    Cancel,
    Envelope,
    KVHandover,
    Message,
    Peer,
    TokenEvent,
    TokenEvents,
)
from protocol.records import is_record
from protocol.sampling import Sampling, TokenLogprob

ENVELOPE = Envelope(Peer("decode-1", "e1"), "e2")


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Any value of a field's type."""
    simple = {
        int: st.integers(-(2**63), 2**63 - 1),
        str: st.text(max_size=20),
        float: st.floats(allow_nan=False),
        bool: st.booleans(),
        bytes: st.binary(max_size=40),
    }
    if annotation in simple:
        return simple[annotation]
    if is_record(annotation):
        hints = typing.get_type_hints(annotation)
        return st.builds(annotation, **{name: values(hint) for name, hint in hints.items()})
    items = typing.get_args(annotation)
    if items[-1] is Ellipsis:
        return st.lists(values(items[0]), max_size=3).map(tuple)
    return st.tuples(*map(values, items))


@pytest.mark.parametrize("kind", TAGS.values(), ids=lambda kind: kind.__name__)
def test_every_message_comes_back_as_it_was(kind: type[Any]) -> None:
    @given(values(kind))
    def check(message: Any) -> None:
        assert decode(encode(ENVELOPE, message)) == (ENVELOPE, message)

    check()


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_are_a_whole_message(frame: bytes) -> None:
    try:
        _, message = decode(b"\x02" + frame)
    except WireError:
        return
    assert type(message) in TAGS.values()


def test_each_cut_of_a_frame_is_refused() -> None:
    frame = encode(ENVELOPE, Ack((AckItem("r", 1, 0, 5),)))
    for end in range(len(frame)):
        with pytest.raises(WireError):
            decode(frame[:end])


@pytest.mark.parametrize(
    "fields",
    [
        [13, "a", "b", "c", "r", True, "why"],
        [13, "a", "b", "c", "r", "1", "why"],
        [13, "a", "b", "c", "r", 1],
        [13, "a", "b", "c", "r", 1, "why", "more"],
        [13, "a", 1, "c", "r", 1, "why"],
        [99, "a", "b", "c"],
        [True, "a", "b", "c"],
        [10, "a", "b", "c", [["r", 1, 0]]],
        [10, "a", "b", "c", "text"],
        {},
        7,
    ],
)
def test_a_field_of_a_wrong_type_or_count_is_refused(fields: object) -> None:
    with pytest.raises(WireError):
        decode(b"\x02" + msgpack.packb(fields))


def with_field(message: Message, path: tuple[int, ...], value: object) -> bytes:
    """A frame of `message` in which the value at `path` is another one."""
    fields = msgpack.unpackb(encode(ENVELOPE, message)[1:])
    head, body = fields[:4], fields[4:]
    place = body
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return b"\x02" + msgpack.packb(head + body)


HANDED = KVHandover("r", 1, "t", Peer("gateway-1", "e"), (1,), (), Sampling(), "", 1, (), 0, 0, b"", 0, 0)
TOKENS = TokenEvents("decode", (TokenEvent("r", 1, 0, 0, (5,), (TokenLogprob(-1.0, (5,), (-1.0,)),), "", -1, -1, 0),))


@pytest.mark.parametrize(
    ("message", "path", "value"),
    [
        (Ack((AckItem("r", 1, 0, 5),)), (0, 0, 3), True),
        (Ack((AckItem("r", 1, 0, 5),)), (0, 0), ["r", 1, 0]),
        (Ack((AckItem("r", 1, 0, 5),)), (0, 0), "r"),
        (TOKENS, (1, 0, 4), ["5"]),
        (TOKENS, (1, 0, 4), [True]),
        (TOKENS, (1, 0, 5), [[]]),
        (TOKENS, (1, 0, 5, 0, 0), "much"),
        (TOKENS, (1, 0, 5), 7),
        (HANDED, (6, 7), [[]]),
        (HANDED, (3,), []),
    ],
)
def test_a_wrong_value_is_refused_however_deep_it_lies(message: Message, path: tuple[int, ...], value: object) -> None:
    with pytest.raises(WireError):
        decode(with_field(message, path, value))


def test_a_whole_number_is_a_number_where_one_is_expected() -> None:
    _, message = decode(with_field(TOKENS, (1, 0, 5, 0, 0), -1))
    assert message == TOKENS


def test_another_version_is_refused_and_named() -> None:
    frame = encode(ENVELOPE, Cancel("r", 1, "why"))
    with pytest.raises(WireError, match="version 03"):
        decode(b"\x03" + frame[1:])


def test_an_oversized_frame_is_refused_unread() -> None:
    with pytest.raises(WireError, match="over the limit"):
        decode(bytes(MAX_FRAME_BYTES + 1))


def test_every_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Code)
