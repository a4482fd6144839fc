"""What is refused of a JSON schema before the library sees it: what it would get wrong, or take too long over."""

import json
from collections.abc import Mapping
from decimal import Decimal

from gateway.grammars.errors import GrammarRefused

MAX_DEPTH = 64
MAX_PATTERN_CHARS = 2048
"""Of one regular expression: the time that one takes grows with the square of its length."""

MAX_OPTIONAL = 400
"""Properties of one object that may be missing: each of the others may follow each."""

MAX_INTEGER = 1 << 53
MAX_DIGITS = 15
"""Numbers are read as doubles; other ones would be rounded in silence."""

MAX_MULTIPLE = 10_000
"""Of ``multipleOf``, in units of its last digit: the automaton has a state for each remainder."""

_LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_UNSAYABLE = frozenset(map(chr, [*range(0x20), 0x7F])) - frozenset("\b\f\n\r\t")
_ELSEWHERE = frozenset({"additionalProperties", "patternProperties", "anyOf", "oneOf", "$ref", "minProperties"})
_VALUES = ("const", "enum")
_IGNORED = frozenset({"title", "description", "default", "examples", "$comment"})
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")


def check_schema(schema: object, depth: int = 0) -> None:
    """Raise ``GrammarRefused`` that names the keyword at fault."""
    if depth > MAX_DEPTH:
        raise GrammarRefused(f"nested deeper than {MAX_DEPTH}")
    if isinstance(schema, list):
        for each in schema:
            check_schema(each, depth + 1)
    if not isinstance(schema, Mapping):
        return
    if "x-guidance" in schema:
        raise GrammarRefused("the keyword x-guidance isn't supported")
    check_pattern(schema.get("pattern"))
    _check_optional(schema)
    for keyword in ("const", "enum", *_LIMITS):
        _check_value(keyword, schema.get(keyword))
    _check_multiple(schema.get("multipleOf"))
    for key, value in schema.items():
        if key in _BY_NAME and isinstance(value, Mapping):
            check_schema(list(value.values()), depth + 1)
        elif key not in _VALUES and key not in _IGNORED:
            check_schema(value, depth + 1)


def plain_schema(schema: object, *, closes: bool | None = None) -> object:
    """The same schema in what the library reads: counts as integers (2 for 2.0), and no words that change nothing.

    Objects that say nothing of further properties get none: that is one of the answers which the schema allows, and
    models that may go on do. Not where ``allOf`` puts schemas together, of which none knows the others' properties.
    """
    if closes is None:
        closes = "allOf" not in json.dumps(schema)
    if isinstance(schema, list):
        return [plain_schema(each, closes=closes) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    plain: dict[str, object] = {}
    for key, value in schema.items():
        if key in _VALUES:
            plain[key] = value
        elif key in _IGNORED:
            continue
        elif key in _COUNTS and isinstance(value, float) and value.is_integer():
            plain[key] = int(value)
        elif key != "$schema" or not isinstance(value, str):
            plain[key] = plain_schema(value, closes=closes)
    if closes and _may_close(schema):
        plain["additionalProperties"] = False
    return plain


def _may_close(schema: Mapping[str, object]) -> bool:
    """Whether an object's properties are all named in one place."""
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list) or _ELSEWHERE & schema.keys():
        return False
    return all(isinstance(name, str) and name in properties for name in required)


def check_pattern(pattern: object) -> None:
    """Raise ``GrammarRefused`` for an overlong regular expression."""
    if isinstance(pattern, str) and len(pattern) > MAX_PATTERN_CHARS:
        raise GrammarRefused(f"a regular expression (pattern) has at most {MAX_PATTERN_CHARS} characters")


def _check_optional(schema: Mapping[str, object]) -> None:
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(properties, Mapping) and len(properties) > MAX_OPTIONAL:
        needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        if len(properties.keys() - needed) > MAX_OPTIONAL:
            raise GrammarRefused(f"properties: at most {MAX_OPTIONAL} that aren't required")


def _check_value(keyword: str, value: object) -> None:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            _check_value(keyword, each)
    elif isinstance(value, str) and _UNSAYABLE & set(value):
        raise GrammarRefused(f"{keyword}: control characters aren't supported")
    elif isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise GrammarRefused(f"{keyword}: integers beyond 2**53 aren't supported")
    elif isinstance(value, float) and _num_digits(value) > MAX_DIGITS:
        raise GrammarRefused(f"{keyword}: numbers of more than {MAX_DIGITS} digits aren't supported")


def _num_digits(value: float) -> int:
    mantissa = repr(value).lower().partition("e")[0]
    return len(mantissa.replace(".", "").lstrip("-0"))


def _check_multiple(value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    if int("".join(map(str, Decimal(repr(value)).normalize().as_tuple().digits))) > MAX_MULTIPLE or abs(value) < 1e-6:
        raise GrammarRefused(f"multipleOf: at most {MAX_MULTIPLE} units of its last digit")


def check_depth(value: object) -> None:
    """Raise ``GrammarRefused`` for anything nested too deep, also in values and in what is ignored."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > 2 * MAX_DEPTH:
            raise GrammarRefused(f"nested deeper than {2 * MAX_DEPTH}")
        inner: list[object] = []
        for each in level:
            if isinstance(each, Mapping):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        level = inner
