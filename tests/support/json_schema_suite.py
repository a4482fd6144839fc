"""Schemas with values that they take and refuse: see tests/data/json_schema_suite."""

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).parents[1] / "data" / "json_schema_suite"
NOTES = frozenset({"$schema", "$comment", "title", "description", "default"})
"""Keywords that refuse no value."""
BASIC = frozenset(
    {"type", "enum", "const", "properties", "required", "additionalProperties", "items", "prefixItems"}
    | {"minItems", "maxItems", "minLength", "maxLength", "pattern", "minimum", "maximum"}
    | {"exclusiveMinimum", "exclusiveMaximum", "multipleOf", "anyOf", "allOf", "$ref", "$defs"}
)

Schema = dict[str, Any] | bool


class Example(NamedTuple):
    """A value, and whether the schema takes it."""

    description: str
    value: Any
    valid: bool


class Case(NamedTuple):
    """One schema of the suite; `file` is relative to its folder."""

    file: str
    description: str
    schema: Schema
    tests: tuple[Example, ...]


def schemas() -> Iterator[Case]:
    """Yield all schemas of the suite."""
    for path in sorted(DATA.rglob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            tests = tuple(Example(test["description"], test["data"], test["valid"]) for test in group["tests"])
            yield Case(path.relative_to(DATA).as_posix(), group["description"], group["schema"], tests)


def uses_only(schema: Schema, keywords: Collection[str]) -> bool:
    """Say whether a schema and those in it have no keywords but these and `NOTES`, and refer to nothing outside."""
    if isinstance(schema, bool):
        return True
    known = all(key in keywords or key in NOTES for key in schema)
    return (
        known and schema.get("$ref", "#").startswith("#") and all(uses_only(part, keywords) for part in parts(schema))
    )


def parts(schema: dict[str, Any]) -> Iterator[Schema]:
    """Yield the schemas right inside a schema, as far as `BASIC` keywords have any."""
    for key in ("properties", "$defs"):
        yield from schema.get(key, {}).values()
    for key in ("prefixItems", "anyOf", "allOf"):
        yield from schema.get(key, [])
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield schema[key]
