"""The grammar of an answer that must call a tool, in the format that a model writes calls in."""

import json
import re
from collections.abc import Mapping, Sequence

from llguidance import LLMatcher

from gateway.grammars.building import ANY_OBJECT, OPTIONS, bounded, literal
from gateway.grammars.errors import GrammarRefused
from gateway.grammars.schema import check_depth, check_schema, plain_schema
from gateway.tool_calls.formats import ToolFormat

Function = tuple[str, Mapping[str, object] | None]
"""A name, and the schema of its arguments if there is one."""


def of_calls(style: ToolFormat, functions: Sequence[Function], special: Mapping[str, int], *, parallel: bool) -> str:
    """One call of one of ``functions``, or several of them. Raises ``GrammarRefused``.

    ``special``: ids of the format's markers that are tokens of their own.
    """
    calls = [f"call_{number}" for number in range(len(functions))]
    more = f" ({_text(style.between, special)} call)*" if parallel else ""
    rules = [
        f"start: {_text(style.begin, special)} call{more} {_text(style.end, special)}",
        "call: " + " | ".join(calls),
    ]
    for number, (name, schema) in enumerate(functions):
        head = f"{{{json.dumps(style.name_key)}: {json.dumps(name)}, {json.dumps(style.arguments_key)}: "
        rules += [
            f"{calls[number]}: {literal(head)} arguments_{number} {literal('}')}",
            f"arguments_{number}: %json {_json(name, schema)}",
        ]
    return bounded(LLMatcher.grammar_from_lark("\n".join(rules)))


def _json(name: str, schema: Mapping[str, object] | None) -> str:
    """A schema of arguments, which are an object whatever it says.

    Raises ``GrammarRefused`` that names the function.
    """
    try:
        bounded(json.dumps(schema))
        check_depth(schema)
        check_schema(schema)
    except GrammarRefused as refused:
        raise GrammarRefused(f"parameters of {name}: {refused}") from refused
    plain = plain_schema(schema or ANY_OBJECT)
    assert isinstance(plain, dict)
    if plain.setdefault("type", "object") != "object":
        raise GrammarRefused(f"parameters of {name}: their type is object")
    return json.dumps({**plain, "x-guidance": OPTIONS})


def _text(text: str, special: Mapping[str, int]) -> str:
    """A marker as Lark writes it: text, but for tokens of their own, which are named by id."""
    if not special:
        return literal(text) if text else '""'
    parts = re.split("(" + "|".join(map(re.escape, special)) + ")", text)
    written = [f"<[{special[part]}]>" if part in special else literal(part) for part in parts if part]
    return " ".join(written) or '""'
