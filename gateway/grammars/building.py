"""From schemas, expressions and choices to a grammar's text, which workers compile for their model's tokens."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from gateway.grammars.errors import GrammarRefused
from gateway.grammars.schema import check_depth, check_pattern, check_schema, plain_schema

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MAX_GRAMMAR_CHARS = 128 << 10
"""Of a schema or a grammar; it travels with each attempt of a request."""

MAX_CHOICES = 4096

ANY_OBJECT: Mapping[str, object] = {"type": "object"}

OPTIONS: "JsonCompileOptions" = {
    "whitespace_flexible": False,
    "json_allowed_escapes": '"\\bfnrt',
    "lenient": False,
    "coerce_one_of": False,
}
"""Compact JSON, which costs the fewest tokens and never runs off into line breaks; no keyword is passed over. Without
the escape of code points no key can pass for another one than it is."""


def of_schema(schema: Mapping[str, object]) -> str:
    """JSON that a schema allows. Raises ``GrammarRefused``."""
    try:
        bounded(json.dumps(schema))
    except (ValueError, RecursionError) as error:
        raise GrammarRefused(f"it can't be read: {error}") from error
    check_depth(schema)
    check_schema(schema)
    return bounded(LLMatcher.grammar_from_json_schema(json.dumps(plain_schema(schema)), overrides=OPTIONS))


def of_regex(pattern: str) -> str:
    """Text that a regular expression matches as a whole. Raises ``GrammarRefused``."""
    check_pattern(pattern)
    return LLMatcher.grammar_from_regex(pattern)


def of_choices(choices: Sequence[str]) -> str:
    """One of some texts. Raises ``GrammarRefused``."""
    if not 0 < len(choices) <= MAX_CHOICES or not all(choices):
        raise GrammarRefused(f"1 to {MAX_CHOICES} texts, none empty")
    return of_lark("start: " + " | ".join(map(literal, choices)))


def of_lark(text: str) -> str:
    """A grammar in llguidance's Lark, or in the GBNF of llama.cpp. Raises ``GrammarRefused``."""
    if not text.strip():
        raise GrammarRefused("it is empty")
    try:
        # without empty lines: telling the two notations apart takes the square of their number
        lines = [line.rstrip() for line in bounded(text).splitlines() if line.strip()]
        return bounded(LLMatcher.grammar_from_lark(any_to_lark("\n".join(lines))))
    except GrammarRefused:
        raise
    except Exception as error:  # the converter raises whatever its parsing comes upon
        raise GrammarRefused(f"it can't be read: {error}") from error


def read_json(text: str) -> object:
    """A schema that came as text. Raises ``GrammarRefused``."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarRefused(f"not valid JSON: {error}") from error


def literal(text: str) -> str:
    """A text as Lark writes one."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f")


def bounded(grammar: str) -> str:
    """``grammar``. Raises ``GrammarRefused`` for an overlong one."""
    if len(grammar) > MAX_GRAMMAR_CHARS:
        raise GrammarRefused(f"longer than {MAX_GRAMMAR_CHARS} characters")
    return grammar
