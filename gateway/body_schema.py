"""What /openapi.json says of a body; bodies are read by ``body``, within bounds."""

from typing import Any

from gateway.body import Body

_NOTHING: list[dict[str, Any]] = [{"type": "null"}, {"type": "object", "maxProperties": 0}]
"""Values of a body's field that are taken as if it weren't there."""


def body_of(*models: type[Body]) -> dict[str, Any]:
    """Return a route's part that describes its body, any of several."""
    schemas = [_of_body(schema_of(each)) for each in models]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return {"requestBody": {"content": {"application/json": {"schema": schema}}, "required": True}}


def schema_of(model: type[Body]) -> dict[str, Any]:
    """Return a model's schema, with that of each part where it is used: references would lead nowhere."""
    schema = model.model_json_schema()
    parts = schema.pop("$defs", {})
    inlined: dict[str, Any] = _inlined(schema, parts)
    return inlined


def _of_body(schema: dict[str, Any]) -> dict[str, Any]:
    fields = schema["properties"]
    for name in fields.keys() - schema.get("required", ()):
        fields[name] = {"anyOf": [fields[name], *_NOTHING]}
    return schema


def _inlined(schema: Any, parts: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(each, parts) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(parts[schema["$ref"].rpartition("/")[2]], parts)
    return {key: _inlined(value, parts) for key, value in schema.items()}
