"""Fields that ask for structured output: which grammar a request gets, and what is refused by name."""

import json
import time
from typing import Any

import pytest

from gateway.grammars.building import MAX_CHOICES, MAX_GRAMMAR_CHARS
from gateway.grammars.schema import MAX_DEPTH, MAX_OPTIONAL, MAX_PATTERN_CHARS
from tests.support.byte_tokenizer import takes
from tests.support.http_twin import CHAT, COMPLETIONS, HELLO, Api
from tests.support.scripted_dispatcher import says

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
NAMED = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}


def grammar_for(path: str = CHAT, **fields: Any) -> str:
    """What workers are sent."""
    api = Api(says("abc"))
    body = {"messages": HELLO, "prompt": "hello", **fields}
    assert api.request("POST", path, json=body).status_code == 200
    [generation] = api.dispatcher.generations
    return generation.sampling.grammar


def refusal(path: str = CHAT, **fields: Any) -> dict[str, Any]:
    api = Api()
    body = {"messages": HELLO, "prompt": "hello", **fields}
    response = api.request("POST", path, json=body)
    assert response.status_code == 400
    assert not api.dispatcher.generations
    error = response.json()["error"]
    assert isinstance(error, dict)
    return error


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_nothing_asked_is_no_grammar(path: str) -> None:
    assert grammar_for(path) == ""
    assert grammar_for(path, response_format={"type": "text"}) == ""
    assert grammar_for(path, structured_outputs={}) == ""


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": NAMED},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": False}}},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"guided_json": SCHEMA},
    ],
)
def test_a_schema_is_kept_to_however_it_is_asked_for(path: str, fields: dict[str, Any]) -> None:
    grammar = grammar_for(path, **fields)
    assert takes(grammar, '{"a":12}')
    for wrong in ('{"a":"x"}', "{}", '{"a":1,"b":2}', "12", '{"a": 12}', '{"\\u0061":1}'):
        assert not takes(grammar, wrong)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        {"structured_outputs": {"json_object": True}},
    ],
)
def test_any_object_is_an_object(fields: dict[str, Any]) -> None:
    """Replays llama.cpp #24096."""
    grammar = grammar_for(**fields)
    assert takes(grammar, '{"b":[1,{"c":null}]}')
    assert not takes(grammar, "[1]")
    assert not takes(grammar, "Sure!")


def test_expressions_choices_and_grammars() -> None:
    assert takes(grammar_for(structured_outputs={"regex": "[ab]{2}"}), "ab")
    assert not takes(grammar_for(guided_regex="[ab]{2}"), "abc")
    choice = grammar_for(structured_outputs={"choice": ['say "hi"', "naïve 🦀", "a\nb"]})
    for text in ('say "hi"', "naïve 🦀", "a\nb"):
        assert takes(choice, text)
    assert not takes(choice, "a")
    assert takes(grammar_for(structured_outputs={"grammar": 'start: "x" y\ny: /[0-9]+/'}), "x12")
    assert takes(grammar_for(guided_grammar='root ::= "x" y\ny ::= [0-9]+'), "x12")


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {}}, "not"),
        ({"type": "object", "propertyNames": {"pattern": "a"}}, "propertyNames"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "x-guidance"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, "oneOf"),
        ({"type": "string", "format": "no-such"}, "no-such"),
        ({"type": "string", "pattern": "(?<=a)b"}, "look-behind"),
        ({"type": "string", "pattern": "a" * (MAX_PATTERN_CHARS + 1)}, "pattern"),
        ({"const": 12345678901234567890}, "const"),
        ({"enum": [[123456789.12345679]]}, "enum"),
        ({"const": "a\x00b"}, "const"),
        ({"type": "integer", "minimum": 9007199254740993}, "minimum"),
        ({"type": "integer", "multipleOf": 999983}, "multipleOf"),
        ({"type": "number", "multipleOf": 1e-9}, "multipleOf"),
        ({"properties": {f"p{i}": {} for i in range(MAX_OPTIONAL + 1)}}, "properties"),
        ({"$ref": "http://localhost/x"}, "http://localhost/x"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
        ({"type": "wrong"}, "wrong"),
        ({"enum": []}, "empty"),
    ],
)
def test_what_cannot_be_kept_to_is_refused_by_name(schema: dict[str, Any], keyword: str) -> None:
    error = refusal(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    assert error["param"] == "response_format"
    assert keyword in error["message"]
    assert "\n" not in error["message"]


def test_keywords_are_told_from_properties_of_their_names() -> None:
    named = {"pattern": {"type": "string"}, "const": {"type": "integer"}, "multipleOf": {"enum": [1]}}
    grammar = grammar_for(structured_outputs={"json": {"type": "object", "properties": named}})
    assert takes(grammar, '{"pattern":"x","const":3,"multipleOf":1}')
    skipped = {"type": "integer", "default": 12345678901234567890, "examples": [{"x-guidance": 1}]}
    assert takes(grammar_for(structured_outputs={"json": skipped}), "7")


@pytest.mark.parametrize("depth", [MAX_DEPTH + 2, 3000])
def test_a_schema_that_is_nested_too_deep_is_refused(depth: int) -> None:
    text = '{"items":' * depth + "{}" + "}" * depth
    assert refusal(structured_outputs={"json": text})["param"] == "structured_outputs.json"


@pytest.mark.parametrize(
    ("outputs", "param"),
    [
        ({"json": SCHEMA, "regex": "a"}, "structured_outputs.regex"),
        ({"choice": []}, "structured_outputs.choice"),
        ({"choice": ["a", ""]}, "structured_outputs.choice"),
        ({"choice": ["a"] * (MAX_CHOICES + 1)}, "structured_outputs.choice"),
        ({"grammar": " "}, "structured_outputs.grammar"),
        ({"grammar": "start: ("}, "structured_outputs"),
        ({"grammar": "root ::= ("}, "structured_outputs.grammar"),
        ({"grammar": "a" * (MAX_GRAMMAR_CHARS + 1)}, "structured_outputs.grammar"),
        ({"regex": "("}, "structured_outputs"),
        ({"regex": "[z-a]"}, "structured_outputs"),
        ({"regex": "a?" * 100_000}, "structured_outputs.regex"),
        ({"json": "not json"}, "structured_outputs.json"),
        ({"json": "[1]"}, "structured_outputs.json"),
        ({"json": 3}, "structured_outputs.json"),
    ],
)
def test_what_is_no_grammar_is_refused_by_name(outputs: dict[str, Any], param: str) -> None:
    """Replays vllm #17313, vllm #19270."""
    assert refusal(structured_outputs=outputs)["param"].startswith(param)


def test_one_kind_at_a_time() -> None:
    error = refusal(response_format={"type": "json_object"}, structured_outputs={"regex": "a"})
    assert error["param"] == "structured_outputs.regex"
    assert "response_format" in error["message"]


@pytest.mark.parametrize("wrong", [{"type": "xml"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": 1}])
def test_a_response_format_of_no_known_kind_is_refused(wrong: dict[str, Any]) -> None:
    assert refusal(response_format=wrong)["param"].startswith("response_format")


def test_ids_and_words_that_narrow_the_choice_are_sent_as_ids() -> None:
    api = Api(says("abc"))
    api.chat(allowed_token_ids=[7, 5, 7], bad_words=["hello", " world"])
    sampling = api.dispatcher.generations[0].sampling
    assert sampling.allowed_ids == (5, 7)
    assert 3 <= len(sampling.bad_words) <= 4
    assert all(sampling.bad_words)
    assert refusal(allowed_token_ids=[10**9])["param"] == "allowed_token_ids"
    assert refusal(allowed_token_ids=[])["param"] == "allowed_token_ids"
    assert refusal(bad_words=[""])["param"].startswith("bad_words")


@pytest.mark.parametrize("text", ["root ::= \n" + "\n" * 100_000, " \n" * 60_000 + "start: /a/"], ids=["gbnf", "lark"])
def test_empty_lines_cost_nothing(text: str) -> None:
    begun = time.process_time()
    Api(says("x")).chat(structured_outputs={"grammar": text})
    assert time.process_time() - begun < 5  # it was minutes


def test_what_is_nested_deep_in_a_value_is_refused_too() -> None:
    for keyword in ("default", "const", "examples"):
        text = f'{{"type":"object","{keyword}":' + "[" * 900 + "]" * 900 + "}"
        assert refusal(structured_outputs={"json": text})["param"] == "structured_outputs.json"


def test_values_are_kept_as_they_are() -> None:
    value = {"$schema": "x", "a": 1, "minItems": 2}
    grammar = grammar_for(structured_outputs={"json": {"const": value}})
    assert takes(grammar, json.dumps(value, separators=(",", ":")))
    assert not takes(grammar, '{"a":1}')
    assert takes(grammar_for(structured_outputs={"choice": ["a\x7fb", "c"]}), "a\x7fb")


def test_an_endless_complaint_of_the_library_is_cut_short() -> None:
    error = refusal(structured_outputs={"grammar": "start: " + "\U0001f980" * 100_000})
    assert len(error["message"]) < 1000


def test_objects_that_name_their_properties_have_no_others() -> None:
    named = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert takes(grammar_for(structured_outputs={"json": named}), '{"a":1}')
    for grammar in (
        grammar_for(structured_outputs={"json": named}),
        grammar_for(structured_outputs={"json": {"type": "array", "items": named}}),
        grammar_for(structured_outputs={"json": {"anyOf": [named, {"type": "null"}]}}),
    ):
        assert not takes(grammar, '{"a":1,"b":2}')
        assert not takes(grammar, '[{"a":1,"b":2}]')
    for open_one in (
        {"type": "object"},
        {**named, "additionalProperties": True},
        {**named, "required": ["b"]},
        {"allOf": [named, {"properties": {"b": {}}}]},
    ):
        assert takes(grammar_for(structured_outputs={"json": open_one}), '{"a":1,"b":2}')
