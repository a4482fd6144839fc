"""The fields that ask for structured output, and the grammar that they mean."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from gateway.body import Body, invalid
from gateway.errors import GatewayError
from gateway.grammars import building
from gateway.grammars.errors import GrammarRefused


class JsonSchemaFormat(Body):
    """``json_schema`` of a response format; ``strict`` is always kept to."""

    name: str = ""
    description: str | None = None
    json_schema: dict[str, object] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """``response_format``, as OpenAI has it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(Body):
    """``structured_outputs``, as vLLM has it: one of the first five. The others change nothing here."""

    json_: dict[str, object] | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = Field(default=None, max_length=building.MAX_CHOICES)
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = True
    disable_additional_properties: bool = False


class StructuredFields(Body):
    """What both endpoints take."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, object] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = Field(default=None, max_length=building.MAX_CHOICES)
    guided_grammar: str | None = None


def asks_for_form(fields: StructuredFields) -> bool:
    """Whether any field asks for one. Raises ``GatewayError`` (400) for a format that lacks its schema."""
    return bool(_asked(fields))


def grammar_of(fields: StructuredFields) -> tuple[str, str]:
    """(name of the field, the grammar that it asks for); twice "" if none does.

    Raises ``GatewayError`` (400): two at once, or one that can't be read.
    """
    asked = _asked(fields)
    if len(asked) > 1:
        first, second = list(asked)[:2]
        raise invalid(second, f"only one kind of structured output at a time, and {first} is there already")
    for name, (kind, value) in asked.items():
        try:
            return name.split(".", 1)[0], _build(kind, value)
        except GrammarRefused as refused:
            raise invalid(name, str(refused)) from refused
    return "", ""


def refused(param: str, error: GrammarRefused) -> GatewayError:
    """A grammar that workers couldn't follow, as an answer to the client."""
    return invalid(param, str(error), code="unsupported_schema")


def _asked(fields: StructuredFields) -> Mapping[str, tuple[str, object]]:
    """(kind, value) by the name of each field that asks for a form."""
    outputs = fields.structured_outputs
    found = {"response_format": _of_format(fields.response_format)}
    for kind in ("json", "regex", "choice", "grammar"):
        own = None if outputs is None else getattr(outputs, "json_" if kind == "json" else kind)
        found[f"structured_outputs.{kind}"] = _pair(kind, own)
        found[f"guided_{kind}"] = _pair(kind, getattr(fields, f"guided_{kind}"))
    if outputs is not None and outputs.json_object:
        found["structured_outputs.json_object"] = ("json", building.ANY_OBJECT)
    return {name: asked for name, asked in found.items() if asked is not None}


def _pair(kind: str, value: object) -> tuple[str, object] | None:
    return None if value is None else (kind, value)


def _of_format(wanted: ResponseFormat | None) -> tuple[str, object] | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return "json", building.ANY_OBJECT
    if wanted.json_schema is None:
        raise invalid("response_format.json_schema", "Field required")
    schema = wanted.json_schema.json_schema
    return "json", building.ANY_OBJECT if schema is None else schema


def _build(kind: str, value: object) -> str:
    if kind == "regex" and isinstance(value, str):
        return building.of_regex(value)
    if kind == "grammar" and isinstance(value, str):
        return building.of_lark(value)
    if kind == "choice" and isinstance(value, list):
        return building.of_choices(value)
    if isinstance(value, str):
        return building.of_schema(_parsed(value))
    assert isinstance(value, Mapping)
    return building.of_schema(value)


def _parsed(text: str) -> Mapping[str, object]:
    value = building.read_json(text)
    if not isinstance(value, dict):
        raise GrammarRefused("a schema is an object")
    return value
