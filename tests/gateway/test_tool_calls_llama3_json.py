"""An answer that is an object with a name is a call, with or without a tag."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tool_calls.llama3_json import Llama3JsonReader
from gateway.tool_calls.segments import CallArguments, CallStart, Content, Segment
from tests.support.text_readers import CUTS, call, check_nothing_is_lost, cut, read, read_in_all_ways

ONE = '{"name": "f", "parameters": {"x": 1}}'
TAG = "<|python_tag|>"

FRAGMENTS = st.sampled_from(
    [ONE, TAG, "<|python", ";", '{"name": "f"', '"arguments": ', '{"a": "}"}', *'{}[]:,"\\1', "\n", " ", "hi", "null"]
)


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        (ONE, call(0, "f", '{"x": 1}')),
        (f"\n\n{ONE}\n", call(0, "f", '{"x": 1}')),
        (TAG + ONE, call(0, "f", '{"x": 1}')),
        (f" {TAG}\n{ONE}", call(0, "f", '{"x": 1}')),
        (f"{ONE}; {ONE}", call(0, "f", '{"x": 1}') + call(1, "f", '{"x": 1}')),
        (f"{TAG}{ONE};{TAG}{ONE};", call(0, "f", '{"x": 1}') + call(1, "f", '{"x": 1}')),
        (f"{ONE}\n{ONE}", call(0, "f", '{"x": 1}') + call(1, "f", '{"x": 1}')),
        ('{"parameters": {"s": "a;b"}, "name": "f"}', call(0, "f", '{"s": "a;b"}')),
        ('{"type": "function", "name": "f", "arguments": {"é": "🦀"}}', call(0, "f", '{"é": "🦀"}')),
        ('{"name": "f", "parameters": null}', call(0, "f", "{}")),
        ('{"name": "f"}', call(0, "f", "{}")),
        (f"{ONE} It rains; I think.", [*call(0, "f", '{"x": 1}'), Content("It rains; I think.")]),
        (f"I look. {TAG}{ONE}", [Content("I look. "), *call(0, "f", '{"x": 1}')]),
        ('{"name": "f", "parameters": {"x"', call(0, "f", '{"x"')),
    ],
)
def test_calls_and_text_are_told_apart_wherever_the_text_is_cut(text: str, segments: list[Segment]) -> None:
    assert read_in_all_ways(Llama3JsonReader, text) == segments


@pytest.mark.parametrize(
    "text",
    [
        "It rains.",
        f"For example: {ONE}",
        f"[{ONE}]",
        '{"name": "Ada", "age": 36}',
        '{"city": "Paris", "parameters": {}}',
        '{"name": 1, "parameters": {}}',
        f'{TAG}print("hello")',
        f'{TAG}brave_search.call(query="weather")',
        '{"name": "f", ',
        "{ }",
        "{; }",
        f" {TAG[:-1]}",
    ],
)
def test_what_is_no_call_stays_text_as_it_is_written(text: str) -> None:
    assert read_in_all_ways(Llama3JsonReader, text) == [Content(text)]


def test_arguments_are_told_as_they_come() -> None:
    reader = Llama3JsonReader()
    assert reader.push('{"name": "f", "parameters": ') == []
    assert reader.push('{"x') == [CallStart(0, "f"), CallArguments(0, '{"x')]
    assert reader.push('": 1}};') == [CallArguments(0, '": 1}')]


def test_words_are_told_at_once() -> None:
    assert Llama3JsonReader().push("It") == [Content("It")]


@given(pieces=st.lists(FRAGMENTS, max_size=20), cuts=CUTS)
def test_any_text_is_read_however_it_is_cut_and_nothing_is_lost(pieces: list[str], cuts: set[int]) -> None:
    text = "".join(pieces)
    whole = read(Llama3JsonReader(), [text])
    assert read(Llama3JsonReader(), cut(text, cuts)) == whole
    assert read(Llama3JsonReader(), text) == whole
    check_nothing_is_lost(text, whole)
