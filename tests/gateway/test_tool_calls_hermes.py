"""Calls between `<tool_call>` and `</tool_call>` are read, and nothing else is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tool_calls.held import MAX_HELD_CHARS
from gateway.tool_calls.hermes import HermesReader
from gateway.tool_calls.json_scan import MAX_DEPTH
from gateway.tool_calls.segments import CallArguments, CallStart, Content, Segment
from tests.support.text_readers import CUTS, call, check_nothing_is_lost, cut, read, read_in_all_ways

ONE = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'

FRAGMENTS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<tool", '{"name": "f"', '"arguments": ', '{"name": 5', '"parameters":'),
        *('{"a": [1, "}"]}', "{", "}", "[", "]", ", ", ": ", '"', "\\", '\\"', "null", "\n", " ", "hi", "é", "<", "1"),
        *(ONE, '"name":"g"', "{}"),
    ]
)

READ: list[tuple[str, list[Segment]]] = [
    (ONE, call(0, "f", '{"x": 1}')),
    ('<tool_call>{"name":"f","arguments":{}}</tool_call>', call(0, "f", "{}")),
    (ONE + "\n" + ONE, call(0, "f", '{"x": 1}') + call(1, "f", '{"x": 1}')),
    (ONE + ONE + "\n", call(0, "f", '{"x": 1}') + call(1, "f", '{"x": 1}')),
    ("\n\n" + ONE, call(0, "f", '{"x": 1}')),
    ("I look.\n" + ONE, [Content("I look.\n"), *call(0, "f", '{"x": 1}')]),
    (ONE + "\n\nDone <b>.", [*call(0, "f", '{"x": 1}'), Content("Done <b>.")]),
    (ONE + " and " + ONE, [*call(0, "f", '{"x": 1}'), Content("and "), *call(1, "f", '{"x": 1}')]),
    ('<tool_call>{"arguments": {"x": {"y": []}}, "name": "f"}</tool_call>', call(0, "f", '{"x": {"y": []}}')),
    ('<tool_call>{"name": "f", "parameters": {"x": 1}}</tool_call>', call(0, "f", '{"x": 1}')),
    ('<tool_call>{"name": "f"}</tool_call>', call(0, "f", "{}")),
    ('<tool_call>{"name": "f", "arguments": null}</tool_call>', call(0, "f", "{}")),
    ('<tool_call>{"arguments": null, "name": "f"}</tool_call>', call(0, "f", "{}")),
    (
        '<tool_call>{"id": "a}", "n": -1.5e3, "name": "f", "arguments": {"x": 1}, "ok": [true]}</tool_call>',
        call(0, "f", '{"x": 1}'),
    ),
    (
        '<tool_call>{"name": "f", "arguments": {"x": 1}, "arguments": {"x": 2}, "name": "g"}</tool_call>',
        call(0, "f", '{"x": 1}'),
    ),
    (
        r'<tool_call>{"n\u0061me": "n\u00e9\"", "arguments": {"t": "a\\", "u": "\"}</tool_call>", "é": "你好 🦀"}}',
        call(0, 'né"', r'{"t": "a\\", "u": "\"}</tool_call>", "é": "你好 🦀"}'),
    ),
]

NO_CALLS = [
    "",
    "Plain words.",
    "  \n",
    "a < b, <tool_calls> and <tool_",
    "<tool_call>",
    "<tool_call>\n{",
    " <tool_call>hello</tool_call>",
    '<tool_call>{"name": "f", "argum',
    '<tool_call>{"name": "f"',
    '<tool_call>{"arguments": {"x": 1}}</tool_call>',
    '<tool_call>{"name": "", "arguments": {}}</tool_call>',
    '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
    '<tool_call>{"name": {"f": 1}, "arguments": {}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
    '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>',
    '<tool_call>{"name": "f", "arguments": nulls}</tool_call>',
    '<tool_call>{"name": "f", "args": {"x": 1}}</tool_call>',
    '<tool_call>{"name": "f" "arguments": {}}</tool_call>',
    "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>",
    '<tool_call>{name: "f"}</tool_call>',
    '<tool_call>{"name": "f",}</tool_call>',
    '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
    '<tool_call>{"na\\me": "f", "arguments": {}}</tool_call>',
    '<tool_call>[{"name": "f", "arguments": {}}]</tool_call>',
    "<tool_call>\n<function=f>\n</function>\n</tool_call>",
]


@pytest.mark.parametrize(("text", "segments"), READ)
def test_calls_and_text_are_told_apart_wherever_the_text_is_cut(text: str, segments: list[Segment]) -> None:
    assert read_in_all_ways(HermesReader, text) == segments


@pytest.mark.parametrize("text", NO_CALLS)
def test_what_is_no_call_stays_text_as_it_is_written(text: str) -> None:
    assert read_in_all_ways(HermesReader, text) == ([Content(text)] if text else [])


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("<tool_call><tool_call>", [Content("<tool_call>")]),
        ('<tool_call>{"name": 5}</tool_call>\n', [Content('<tool_call>{"name": 5}</tool_call>\n')]),
    ],
)
def test_a_call_behind_what_is_none_is_read(text: str, segments: list[Segment]) -> None:
    text = text.removesuffix("<tool_call>")
    assert read_in_all_ways(HermesReader, text + ONE) == [*segments, *call(0, "f", '{"x": 1}')]


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ('<tool_call>{"name": "f", "arguments": {"x": [1', call(0, "f", '{"x": [1')),
        ('<tool_call>{"name": "f", "arguments": {"x": "\\', call(0, "f", '{"x": "\\')),
        ('<tool_call>{"name": "f", "arguments": {}, "id": "a', call(0, "f", "{}")),
        ('<tool_call>{"name": "f", "arguments": {}', call(0, "f", "{}")),
        ('<tool_call>{"name": "f", "arguments": {}}\n', call(0, "f", "{}")),
    ],
)
def test_a_call_that_is_cut_off_is_told_so_far(text: str, segments: list[Segment]) -> None:
    assert read_in_all_ways(HermesReader, text) == segments


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ('{"name": "f", "arguments": {"x": 1,}}\n</tool_call>', call(0, "f", '{"x": 1,}')),
        ('{"name": "f", "arguments": {"x": 1}\n</tool_call>', call(0, "f", '{"x": 1}')),
        ('{"name": "f", "arguments": {"x": 1}}', call(0, "f", '{"x": 1}')),
        ('{"name": "f", "arguments": {"x": 1</tool_call>', call(0, "f", '{"x": 1')),
        ('{"name": "f", "arguments": {"x": [1}}', [*call(0, "f", '{"x": [1'), Content("}}")]),
        ('{"name": "f", "arguments": {}, "id" 5}', [*call(0, "f", "{}"), Content(', "id" 5}')]),
    ],
)
def test_a_call_that_breaks_stays_as_it_was_told(text: str, segments: list[Segment]) -> None:
    text = "<tool_call>" + text
    assert read_in_all_ways(HermesReader, text) == segments
    again = call(1, "f", '{"x": 1}')
    assert read_in_all_ways(HermesReader, text + ONE) == [*segments, *again]


def test_arguments_are_told_as_they_come() -> None:
    reader = HermesReader()
    assert reader.push('<tool_call>\n{"name": "f", "arguments": ') == []
    assert reader.push("{") == [CallStart(0, "f"), CallArguments(0, "{")]
    assert reader.push('"x": "a') == [CallArguments(0, '"x": "a')]
    assert reader.push('"}') == [CallArguments(0, '"}')]
    assert reader.push("}\n</tool_call>") == []


def test_arguments_before_the_name_wait_for_it() -> None:
    reader = HermesReader()
    assert reader.push('<tool_call>{"arguments": {"x": 1}, "name": "f') == []
    assert reader.push('"') == call(0, "f", '{"x": 1}')


def test_only_what_may_become_a_marker_is_held() -> None:
    reader = HermesReader()
    assert reader.push("a <to") == [Content("a ")]
    assert reader.push("o <<tool_cal") == [Content("<too <")]
    assert reader.push("a") == [Content("<tool_cala")]
    assert reader.push(" ") == [Content(" ")]


@given(pieces=st.lists(FRAGMENTS, max_size=20), cuts=CUTS)
def test_any_text_is_read_however_it_is_cut_and_nothing_is_lost(pieces: list[str], cuts: set[int]) -> None:
    text = "".join(pieces)
    whole = read(HermesReader(), [text])
    assert read(HermesReader(), cut(text, cuts)) == whole
    assert read(HermesReader(), text) == whole
    check_nothing_is_lost(text, whole)


SCALARS = st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(max_size=3), SCALARS, max_size=3)
OBJECTS = st.dictionaries(st.text(max_size=3), VALUES, max_size=3)
NAMES = st.text(min_size=1, max_size=5)


@given(calls=st.lists(st.tuples(NAMES, OBJECTS, st.booleans(), st.booleans()), min_size=1, max_size=3), cuts=CUTS)
def test_calls_come_back_in_their_own_spelling(
    calls: list[tuple[str, dict[str, object], bool, bool]], cuts: set[int]
) -> None:
    text, expected = "", list[Segment]()
    for index, (name, arguments, name_first, ascii_only) in enumerate(calls):
        spelled = json.dumps(arguments, ensure_ascii=ascii_only)
        members = [f'"name": {json.dumps(name, ensure_ascii=ascii_only)}', f'"arguments": {spelled}']
        text += "<tool_call>{" + ", ".join(members if name_first else reversed(members)) + "}</tool_call>\n"
        expected += call(index, name, spelled)
    assert read(HermesReader(), cut(text, cuts)) == expected


@pytest.mark.parametrize("beginning", ['<tool_call>{"arguments": {"x": "', '<tool_call>{"id": "', "<tool_call>", ""])
def test_more_than_can_be_held_is_text(beginning: str) -> None:
    text = beginning + " " * (MAX_HELD_CHARS + 10) + ONE
    reader = HermesReader()
    size = 1 << 16
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    segments = read(reader, pieces)
    assert segments == read(HermesReader(), [text])
    assert segments == [Content(text.removesuffix(ONE)), *call(0, "f", '{"x": 1}')]


def test_brackets_are_nested_to_a_limit() -> None:
    deepest = '{"x": ' + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1) + "}"
    head = '<tool_call>{"name": "f", "arguments": '
    assert read(HermesReader(), [head + deepest + "}"]) == call(0, "f", deepest)
    too_deep = head + '{"x": ' + "[" * MAX_DEPTH
    assert read(HermesReader(), [too_deep]) == [*call(0, "f", '{"x": ' + "[" * (MAX_DEPTH - 1)), Content("[")]
