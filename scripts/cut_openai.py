"""Cuts what tests need out of OpenAI's OpenAPI description: `python scripts/cut_openai.py openapi.json`."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOTS = (
    "CreateChatCompletionResponse",
    "CreateChatCompletionStreamResponse",
    "CreateCompletionResponse",
    "CreateEmbeddingResponse",
    "ErrorResponse",
    "ListModelsResponse",
    "Model",
    "Response",
    "ResponseStreamEvent",
)
PREFIX = "#/components/schemas/"
TEXTS = ("deprecated", "description", "discriminator", "example", "examples", "externalDocs", "title")
"""Keywords that refuse no value."""
NAMED = ("properties", "patternProperties", "$defs")
"""Keywords whose keys are names and not keywords."""
OUT = Path("tests/data/openai/schemas.json")


def bare(schema: Any) -> Any:
    """Return a schema without what is there for readers and generators alone."""
    if isinstance(schema, list):
        return [bare(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: part for key, part in schema.items() if key not in TEXTS and not key.startswith("x-")}
    return {
        key: {name: bare(each) for name, each in part.items()} if key in NAMED else bare(part)
        for key, part in kept.items()
    }


def named_by(schema: Any) -> Iterator[str]:
    """Yield the components that a schema refers to."""
    if isinstance(schema, dict):
        if isinstance(target := schema.get("$ref"), str):
            yield target.removeprefix(PREFIX)
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from named_by(part)


def cut(components: dict[str, Any]) -> dict[str, Any]:
    """Return the roots and all that they refer to."""
    found: dict[str, Any] = {}
    missing = list(ROOTS)
    while missing:
        name = missing.pop()
        if name not in found:
            found[name] = bare(components[name])
            missing.extend(named_by(found[name]))
    return found


if __name__ == "__main__":
    whole = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    text = json.dumps(cut(whole["components"]["schemas"]), indent=1, sort_keys=True, ensure_ascii=False)
    OUT.write_text(text + "\n", encoding="utf-8")
    print(f"{OUT}: {len(text)} bytes")
