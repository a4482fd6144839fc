"""Every schema of the JSON Schema test suite: refused by a word on what is wrong, or kept to by whatever comes out."""

import json
import random
from decimal import Decimal
from functools import cache

import pytest
from jsonschema import Draft202012Validator
from llguidance import LLMatcher

from gateway.grammars.building import of_schema
from gateway.grammars.checker import LIMITS
from gateway.grammars.checking import in_words
from gateway.grammars.errors import GrammarRefused
from tests.support.byte_tokenizer import byte_tokenizer
from tests.support.json_schema_suite import BASIC, Case, schemas, uses_only

MAX_BYTES = 160
CALM_AFTER = 40
"""Bytes after which a walk takes a way out where there is one."""

CLOSERS = b'"]},:0'
FORMATS = "format/"
"""Annotations, says the standard; what is known to be wrong with them: 29 February in any year."""


@cache
def matcher_for(number: int) -> LLMatcher | None:
    """A schema's matcher, or None if it is refused."""
    schema = cases()[number].schema
    if not isinstance(schema, dict):
        return None  # a request's schema is an object
    try:
        grammar = of_schema(schema)
    except GrammarRefused:
        return None
    fault = LLMatcher.validate_grammar(grammar, limits=LIMITS)
    assert not fault or in_words(fault)
    return None if fault else LLMatcher(byte_tokenizer(), grammar, log_level=0, limits=LIMITS)


@cache
def cases() -> list[Case]:
    return list(schemas())


def walk(matcher: LLMatcher, seed: int) -> str | None:
    """A random text of a grammar; None if it would be too long."""
    draw, matcher, made = random.Random(seed), matcher.deep_copy(), bytearray()
    while not matcher.is_stopped() and len(made) < MAX_BYTES:
        mask = matcher.compute_bitmask()
        allowed = [byte for byte in range(256) if mask[byte // 8] >> byte % 8 & 1]
        if matcher.is_accepting() and (not allowed or draw.random() < 0.3):
            break
        if not allowed:
            return None
        calm = [byte for byte in CLOSERS if byte in allowed] if len(made) > CALM_AFTER else []
        made.append(draw.choice(calm or allowed))
        matcher.consume_token(made[-1])
    try:
        return made.decode() if matcher.is_accepting() or matcher.is_stopped() else None
    except UnicodeDecodeError:
        return None


def validator(case: Case) -> Draft202012Validator:
    return Draft202012Validator(json.loads(json.dumps(case.schema), parse_float=Decimal))


@pytest.mark.parametrize("seed", range(8))
def test_nothing_comes_out_that_the_schema_refuses(seed: int) -> None:
    num_ended = 0
    for number, case in enumerate(cases()):
        matcher = matcher_for(number)
        if matcher is None or "\\p" in str(case.schema) or case.file.startswith(FORMATS):
            continue
        text = walk(matcher, seed)
        if text is not None:
            num_ended += 1
            assert validator(case).is_valid(json.loads(text, parse_float=Decimal)), (case.description, text)
    assert num_ended > 90


def test_what_the_suite_says_is_wrong_cannot_be_said() -> None:
    for number, case in enumerate(cases()):
        matcher = matcher_for(number)
        if matcher is None or case.file.startswith(FORMATS):
            continue
        for test in case.tests:
            if not test.valid:
                said = matcher.deep_copy()
                text = json.dumps(test.value, ensure_ascii=False, separators=(",", ":"))
                ended = bool(said.try_consume_tokens(list(text.encode())) == len(text.encode())) and said.is_accepting()
                assert not ended, (case.description, text)


def test_nearly_all_schemas_of_usual_keywords_are_kept_to() -> None:
    usual = [number for number, case in enumerate(cases()) if uses_only(case.schema, BASIC)]
    kept = [number for number in usual if matcher_for(number) is not None]
    assert len(kept) / len(usual) > 0.9
    share = sum(matcher_for(number) is not None for number in range(len(cases()))) / len(cases())
    assert 0.44 < share < 0.6  # docs/structured-output.md says 45 %
