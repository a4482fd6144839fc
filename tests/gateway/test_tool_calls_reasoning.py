"""What a model thinks is told apart from its answer, and calls in the answer are read."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tool_calls.hermes import HermesReader
from gateway.tool_calls.reasoning import ReasoningReader
from gateway.tool_calls.segments import CallArguments, CallStart, Content, Reasoning, Segment
from tests.support.text_readers import CUTS, call, content_of, cut, read, read_in_all_ways, reasoning_of

ONE = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'

FRAGMENTS = st.sampled_from(["<think>", "</think>", "<thi", "</th", "<", "\n", " ", "hm", "é", ONE, "<tool_call>"])


def outside() -> ReasoningReader:
    return ReasoningReader(HermesReader(), starts_inside=False)


def inside() -> ReasoningReader:
    return ReasoningReader(HermesReader(), starts_inside=True)


def plain() -> ReasoningReader:
    return ReasoningReader(None, starts_inside=False)


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", [Reasoning("Hm.\n"), Content("Yes.")]),
        (" \n<think>a < b</think>Yes.", [Reasoning("a < b"), Content("Yes.")]),
        ("<think>\n\n Hm </think> Yes.", [Reasoning("\n Hm "), Content(" Yes.")]),
        ("<think>\n\n</think>\n\nYes.", [Content("Yes.")]),
        ("<think></think>", []),
        (f"<think>{ONE}</think>\n\n{ONE}", [Reasoning(ONE), *call(0, "f", '{"x": 1}')]),
        ("<think>Hm </think", [Reasoning("Hm </think")]),
        ("<think>\nHm", [Reasoning("Hm")]),
        ("<think>\n</thi", [Reasoning("</thi")]),
        ("<think>Hm</think>Yes</think> <think>", [Reasoning("Hm"), Content("Yes</think> <think>")]),
        ("Yes. <think>Hm</think>", [Content("Yes. <think>Hm</think>")]),
        ("\n Yes.", [Content("\n Yes.")]),
        (" <thin", [Content(" <thin")]),
        (f"\n{ONE}", call(0, "f", '{"x": 1}')),
        ("</think>", [Content("</think>")]),
    ],
)
def test_reasoning_is_what_stands_between_the_markers(text: str, segments: list[Segment]) -> None:
    assert read_in_all_ways(outside, text) == segments


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("\nHm.\n</think>\n\nYes.", [Reasoning("Hm.\n"), Content("Yes.")]),
        ("<think>\nHm</think>Yes.", [Reasoning("Hm"), Content("Yes.")]),
        ("\n\n</think>Yes.", [Content("Yes.")]),
        (f" Hm</think>{ONE}", [Reasoning(" Hm"), *call(0, "f", '{"x": 1}')]),
        (ONE, [Reasoning(ONE)]),
        ("Hm", [Reasoning("Hm")]),
        ("\n", []),
        ("<thi", [Reasoning("<thi")]),
    ],
)
def test_reasoning_may_have_begun_in_the_prompt(text: str, segments: list[Segment]) -> None:
    assert read_in_all_ways(inside, text) == segments


def test_without_an_inner_reader_the_answer_is_content() -> None:
    assert read_in_all_ways(plain, f"<think>Hm</think>{ONE}") == [Reasoning("Hm"), Content(ONE)]
    assert read_in_all_ways(plain, ONE) == [Content(ONE)]


def test_other_markers_can_be_set() -> None:
    reader = ReasoningReader(None, "[THINK]", "[/THINK]", starts_inside=False)
    assert read(reader, ["[THINK]Hm[/THI", "NK]Yes"]) == [Reasoning("Hm"), Content("Yes")]


def test_reasoning_is_told_as_it_comes() -> None:
    reader = outside()
    assert reader.push("<think>\n") == []
    assert reader.push("Hm, ") == [Reasoning("Hm, ")]
    assert reader.push("</th") == []
    assert reader.push("e") == [Reasoning("</the")]
    assert reader.push('</think>\n\n<tool_call>{"name": "f", "arguments": {') == [
        CallStart(0, "f"),
        CallArguments(0, "{"),
    ]


def test_it_is_known_whether_the_text_is_still_reasoning() -> None:
    reader = outside()
    seen = []
    for piece in ("\n", "<think>", "Hm", "</thi", "nk>", "\n", "Yes"):
        reader.push(piece)
        seen.append(reader.inside)
    assert seen == [False, True, True, True, False, False, False]
    assert inside().inside


@given(pieces=st.lists(FRAGMENTS, max_size=12), cuts=CUTS, starts_inside=st.booleans())
def test_any_text_is_read_however_it_is_cut_and_nothing_is_lost(
    pieces: list[str], cuts: set[int], starts_inside: bool
) -> None:
    text = "".join(pieces)
    whole = read(ReasoningReader(None, starts_inside=starts_inside), [text])
    assert read(ReasoningReader(None, starts_inside=starts_inside), cut(text, cuts)) == whole
    assert read(ReasoningReader(None, starts_inside=starts_inside), text) == whole
    told = reasoning_of(whole) + content_of(whole)
    rest = iter(text)
    assert all(char in rest for char in told)
    num_markers = sum(text.count(marker) for marker in ("<think>", "</think>"))
    lost = Counter(text) - Counter(told)
    assert lost["h"] <= min(num_markers, 2)
    assert lost["é"] == lost["m"] == 0
