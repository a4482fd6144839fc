"""A scan ends where a JSON reader says that the value ends."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tool_calls.json_scan import ObjectScan, ValueScan, decoded
from tests.support.text_readers import CUTS, cut

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text('a"\\{}[]é', max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('b"}', max_size=2), inner),
    max_leaves=6,
)


def end_of(scan: ValueScan, pieces: list[str]) -> int:
    """Read piece by piece; return the number of characters that belong to the value."""
    end = 1
    for piece in pieces:
        place = scan.read(piece, 0)
        end += place
        if place < len(piece):
            break
    return end


@given(value=VALUES, rest=st.text(" ,}]:x", max_size=3), cuts=CUTS, indent=st.none() | st.just(1))
def test_a_value_ends_where_it_does_for_a_json_reader(
    value: object, rest: str, cuts: set[int], indent: int | None
) -> None:
    text = json.dumps(value, indent=indent) + " " + rest
    scan = ValueScan(text[0])
    assert end_of(scan, cut(text[1:], cuts)) == len(text) - len(rest) - 1
    assert scan.done
    assert not scan.broken


@pytest.mark.parametrize(("text", "end"), [("[1}", 2), ("{<", 1), ('["a]"}', 5), ("[[]}", 3), ("[';']", 1)])
def test_a_value_breaks_before_what_cant_follow(text: str, end: int) -> None:
    for pieces in ([text[1:]], list(text[1:])):
        scan = ValueScan(text[0])
        assert end_of(scan, pieces) == end
        assert scan.broken
        assert not scan.done


def members(text: str) -> tuple[list[tuple[str, str]], ObjectScan]:
    scan = ObjectScan()
    found: list[tuple[str, str]] = []
    place, value = 0, None
    while place < len(text) and not scan.done and not scan.broken:
        end = scan.read(text, place)
        if scan.value is not None and scan.value is not value:
            found.append((scan.key, ""))
        value = scan.value
        if value is not None:
            found[-1] = (scan.key, found[-1][1] + text[place:end])
        place = end
    return found, scan


def test_an_object_is_read_member_by_member() -> None:
    found, scan = members('{ "a\\n" : [1, {"b": 2}] ,\n"c":-1.5,"":"}"} "d"')
    assert found == [("a\n", '[1, {"b": 2}]'), ("c", "-1.5"), ("", '"}"')]
    assert scan.done
    assert members("{}")[1].done


@pytest.mark.parametrize(
    "text", ["[", "{,", '{"a" 1', '{"a":}', '{"a":1 2', '{"a":1,}', "{a", '{"a"::', '{"\\x":1', '{"a":1;', '{"a":;']
)
def test_an_object_breaks_where_it_isnt_json(text: str) -> None:
    assert members(text)[1].broken


@pytest.mark.parametrize(
    ("quoted", "text"),
    [
        ('"a\\u00e9"', "aé"),
        ('"\\ud83e\\udd80"', "🦀"),
        ('"\\ud83e"', None),
        ('"\\x"', None),
        ('"a\n"', "a\n"),
        ('""', ""),
    ],
)
def test_a_string_is_decoded_if_it_stands_for_text(quoted: str, text: str | None) -> None:
    assert decoded(quoted) == text
