"""Holds bodies to OpenAI's own description of its API: see tests/data/openai."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry
from referencing.jsonschema import DRAFT202012

Json = dict[str, Any]

DATA = Path(__file__).parents[1] / "data" / "openai" / "schemas.json"
URI = "urn:openai"


def check(name: str, value: object) -> None:
    """Raise ``AssertionError`` with the place and the reason if `value` isn't what component `name` describes."""
    error = best_match(_validator(name).iter_errors(value))
    assert error is None, f"{name}{error.json_path.removeprefix('$')}: {error.message}"


def check_event(event: Json) -> None:
    """Check an event of a stream of /responses as what its ``type`` says it is."""
    check(_event_names()[event["type"]], event)


@cache
def _event_names() -> dict[str, str]:
    """Component by type of event."""
    names = [part["$ref"].rpartition("/")[2] for part in _components()["ResponseStreamEvent"]["anyOf"]]
    return {kind: name for name in names for kind in _components()[name]["properties"]["type"]["enum"]}


@cache
def _validator(name: str) -> Draft202012Validator:
    assert name in _components(), f"no component {name}"
    document = {"components": {"schemas": _components()}}
    registry = Registry().with_resource(URI, DRAFT202012.create_resource(document))
    return Draft202012Validator({"$ref": f"{URI}#/components/schemas/{name}"}, registry=registry)


@cache
def _components() -> Json:
    components: Json = json.loads(DATA.read_text(encoding="utf-8"))
    choice = components["CreateCompletionResponse"]["properties"]["choices"]["items"]
    choice["properties"]["finish_reason"]["nullable"] = True  # as sent in a stream until a choice ends
    return {name: _nullable(schema) for name, schema in components.items()}


def _nullable(schema: Any) -> Any:
    """Say `nullable: true`, which OpenAPI 3.1 no longer has, as JSON Schema does."""
    if isinstance(schema, list):
        return [_nullable(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    said = {key: _nullable(part) for key, part in schema.items() if (key, part) != ("nullable", True)}
    return {"anyOf": [said, {"type": "null"}]} if len(said) < len(schema) else said
