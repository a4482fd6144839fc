"""The JSON Schema test suite is read whole, and its schemas are told apart by their keywords."""

import pytest
from jsonschema import Draft202012Validator

from tests.support.json_schema_suite import BASIC, NOTES, Schema, schemas, uses_only


def test_the_whole_suite_is_read() -> None:
    cases = list(schemas())
    assert len(cases) == 411
    assert sum(len(case.tests) for case in cases) == 2063
    assert {case.file for case in cases} >= {"type.json", "ref.json", "format/date.json"}


def test_about_a_third_of_its_schemas_has_basic_keywords_alone() -> None:
    basic = [case for case in schemas() if uses_only(case.schema, BASIC)]
    assert len(basic) == 133
    assert sum(len(case.tests) for case in basic) == 448
    assert any(not test.valid for case in basic for test in case.tests)


def test_a_validator_takes_and_refuses_what_the_suite_says() -> None:
    for case in schemas():
        if uses_only(case.schema, BASIC) and "\\p" not in str(case.schema):  # which Python's regular expressions lack
            validator = Draft202012Validator(case.schema)
            for test in case.tests:
                assert validator.is_valid(test.value) is test.valid, (case.file, case.description, test.description)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"not": {"type": "string"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"enum": [{"not": 1}]}}}},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "a", "default": {"oneOf": 1}},
        {"anyOf": [True, {"additionalProperties": False}]},
        True,
    ],
)
def test_names_and_values_are_no_keywords(schema: Schema) -> None:
    assert uses_only(schema, BASIC)


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {}},
        {"properties": {"a": {"not": {}}}},
        {"$defs": {"a": {"uniqueItems": True}}},
        {"allOf": [True, {"prefixItems": [{"contains": {}}]}]},
        {"items": {"additionalProperties": {"oneOf": []}}},
        {"$ref": "http://localhost:1234/draft2020-12/integer.json"},
        {"$ref": "other.json#/$defs/a"},
    ],
)
def test_a_keyword_is_found_at_any_depth(schema: Schema) -> None:
    assert not uses_only(schema, BASIC)
    assert not uses_only({"type": "array", "items": schema}, BASIC)


def test_other_keywords_can_be_asked_for() -> None:
    assert uses_only({"type": "string", "format": "date"}, BASIC | {"format"})
    assert not uses_only({"type": "string", "minLength": 1}, {"type"})
    assert not NOTES & BASIC
