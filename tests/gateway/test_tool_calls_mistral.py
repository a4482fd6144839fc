"""Calls behind `[TOOL_CALLS]` are read, as a list of objects and as a name with arguments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tool_calls.held import MAX_HELD_CHARS
from gateway.tool_calls.mistral import MistralReader
from gateway.tool_calls.segments import CallArguments, CallStart, Content, Segment
from tests.support.text_readers import CUTS, call, check_nothing_is_lost, cut, read, read_in_all_ways

ONE = '{"name": "f", "arguments": {"x": 1}}'
MARK = "[TOOL_CALLS]"
F = call(0, "f", '{"x": 1}')
F_AGAIN = call(1, "f", '{"x": 1}')

FRAGMENTS = st.sampled_from(
    [ONE, MARK, "[ARGS]", "[CALL_ID]", "[TOOL", "f", '{"x": 1}', '{"name": "f"', *'{}[]:,"\\1', "\n", " ", "hi", "<"]
)


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        (f"{MARK}[{ONE}]", F),
        (f"\n{MARK} [ {ONE} ] \n", F),
        (f"{MARK}[{ONE}, {ONE}]", F + F_AGAIN),
        (f"{MARK}[{ONE}]{MARK}[{ONE}]", F + F_AGAIN),
        (f"{MARK}{ONE}", F),
        (f'{MARK}[{{"arguments": {{"s": "]"}}, "name": "f", "id": "a1"}}]', call(0, "f", '{"s": "]"}')),
        (f'{MARK}[{{"name": "f"}}]', call(0, "f", "{}")),
        (f"I look. {MARK}[{ONE}] Done.", [Content("I look. "), *F, Content("Done.")]),
        (f"{MARK}[{ONE} {ONE}]", [*F, Content(f"{ONE}]")]),
        (f'{MARK}[{ONE}, {{"nope": 1}}]', [*F, Content(' {"nope": 1}]')]),
        (f"{MARK}[{ONE}", F),
    ],
)
def test_a_list_of_calls_is_read_wherever_the_text_is_cut(text: str, segments: list[Segment]) -> None:
    assert read_in_all_ways(MistralReader, text) == segments


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        (MARK + 'f{"x": 1}', F),
        (MARK + 'f[ARGS]{"x": 1}', F),
        (MARK + 'f[CALL_ID]a1B[ARGS]{"x": 1}', F),
        (MARK + ' f [ARGS] {"x": 1}\n', F),
        (f'{MARK}f{{"x": 1}}{MARK}f[ARGS]{{"x": 1}}', F + F_AGAIN),
        (f'I look. {MARK}f{{"x": 1}}\nDone.', [Content("I look. "), *F, Content("Done.")]),
        (MARK + 'a.b-c/d:e_1{"é": {"s": "}🦀\\""}}', call(0, "a.b-c/d:e_1", '{"é": {"s": "}🦀\\""}}')),
        (MARK + 'f{"x": 1', call(0, "f", '{"x": 1')),
        (MARK + 'f{"x": 1]}', [*call(0, "f", '{"x": 1'), Content("]}")]),
    ],
)
def test_a_name_with_arguments_is_read_wherever_the_text_is_cut(text: str, segments: list[Segment]) -> None:
    assert read_in_all_ways(MistralReader, text) == segments


@pytest.mark.parametrize(
    "text",
    [
        "It rains.",
        "[TOOL_CALL] [1]",
        MARK,
        f"{MARK}[]",
        f"{MARK}[1]",
        f"{MARK}f",
        f"{MARK}f[ARGS]",
        f"{MARK}f[ARG]{{}}",
        f"{MARK}f[ARGS]null",
        f"{MARK}f[CALL_ID]",
        f"{MARK}f[CALL_ID]a, b",
        f"{MARK}f(x=1)",
        f"{MARK}a b{{}}",
        f"{MARK}[ARGS]{{}}",
        f'{MARK}[{{"name": "f", "arguments": [1]}}]',
        f'{MARK}[{{"name": "f"',
        ONE,
    ],
)
def test_what_is_no_call_stays_text_as_it_is_written(text: str) -> None:
    assert read_in_all_ways(MistralReader, text) == [Content(text)]


def test_arguments_are_told_as_they_come() -> None:
    reader = MistralReader()
    assert reader.push(f"{MARK}f[ARGS]") == []
    assert reader.push("{") == [CallStart(0, "f"), CallArguments(0, "{")]
    assert reader.push('"x": ') == [CallArguments(0, '"x": ')]
    assert reader.push('1}[TOOL_CALLS][{"name": "g", "arguments": {') == [CallArguments(0, "1}"), *call(1, "g", "{")]


def test_a_name_without_end_is_text() -> None:
    text = MARK + "f" * MAX_HELD_CHARS
    assert read(MistralReader(), [text]) == read(MistralReader(), cut(text, [5, 70_000])) == [Content(text)]


@given(pieces=st.lists(FRAGMENTS, max_size=20), cuts=CUTS)
def test_any_text_is_read_however_it_is_cut_and_nothing_is_lost(pieces: list[str], cuts: set[int]) -> None:
    text = "".join(pieces)
    whole = read(MistralReader(), [text])
    assert read(MistralReader(), cut(text, cuts)) == whole
    assert read(MistralReader(), text) == whole
    check_nothing_is_lost(text, whole)
