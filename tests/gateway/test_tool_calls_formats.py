"""Each format has a reader, and what a model is made to write in it is read back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tool_calls.formats import READERS, REASONING_MARKERS, TOOL_FORMATS, ToolFormat, guess_format
from gateway.tool_calls.segments import CallArguments, CallStart, Content, Reasoning, Segment, joined
from tests.support.text_readers import CUTS, call, cut, read, read_in_all_ways

EXAMPLES = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>',
    "llama3_json": '{"name": "f", "parameters": {"x": 1}}',
    "mistral": '[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}]',
}

FORMATS = pytest.mark.parametrize("form", TOOL_FORMATS.values(), ids=TOOL_FORMATS)


def spelled(form: ToolFormat, name: str, arguments: object) -> str:
    return json.dumps({form.name_key: name, form.arguments_key: arguments}, ensure_ascii=False)


def test_each_reader_has_a_format_to_be_forced_and_an_example() -> None:
    assert list(READERS) == list(TOOL_FORMATS) == list(EXAMPLES)


@FORMATS
def test_one_forced_call_is_written_as_in_the_example_and_read_back(form: ToolFormat) -> None:
    text = form.text([spelled(form, "f", {"x": 1})])
    assert text == EXAMPLES[form.name]
    assert read_in_all_ways(READERS[form.name], text) == call(0, "f", '{"x": 1}')


@FORMATS
@given(
    calls=st.lists(
        st.tuples(st.text(min_size=1, max_size=4), st.dictionaries(st.text(max_size=4), st.text(max_size=4)))
    ),
    cuts=CUTS,
)
def test_forced_calls_are_read_back(form: ToolFormat, calls: list[tuple[str, dict[str, str]]], cuts: set[int]) -> None:
    calls = calls or [("f", {})]
    text = form.text([spelled(form, name, arguments) for name, arguments in calls])
    expected = list[Segment]()
    for index, (name, arguments) in enumerate(calls):
        expected += call(index, name, json.dumps(arguments, ensure_ascii=False))
    assert read(READERS[form.name](), cut(text, cuts)) == expected


def test_reasoning_has_markers() -> None:
    assert dict.fromkeys(("deepseek_r1", "qwen3"), ("<think>", "</think>")) == REASONING_MARKERS


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (r'{{- "<tool_call>\n{\"name\": \"" + call.name + "\", \"arguments\": " }}', "hermes"),
        ("{{- '<tool_call>' }}{{- '<function=' + call.name + '>' }}", ""),
        ("{{- '<tool_call>' + call.name }}<arg_key>{{ key }}</arg_key>", ""),
        ("{{- '[TOOL_CALLS][' }}", "mistral"),
        ("{{- '[TOOL_CALLS]' + call.name + '[ARGS]' }}", "mistral"),
        ("""{{- '"parameters": ' }}{{- "<|start_header_id|>ipython<|end_header_id|>" }}""", "llama3_json"),
        ("<|tool_call|>{{ call }}", ""),
        ("{{ messages[0].content }}", ""),
    ],
)
def test_a_template_tells_its_format(template: str, name: str) -> None:
    assert guess_format(template) == name


def test_neighbors_of_one_kind_are_joined() -> None:
    assert joined(
        [
            *(Reasoning("a"), Reasoning("b"), Content("c"), Content("d"), CallStart(0, "f"), CallArguments(0, "{")),
            *(CallArguments(0, "}"), CallArguments(1, "{}"), CallStart(2, "g"), CallStart(3, "g"), Content("e")),
        ]
    ) == [
        *(Reasoning("ab"), Content("cd"), CallStart(0, "f"), CallArguments(0, "{}"), CallArguments(1, "{}")),
        *(CallStart(2, "g"), CallStart(3, "g"), Content("e")),
    ]
