"""Requests made from the API's own description, right and wrong: none breaks the server, nothing wrong is taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator
from schemathesis.generation import GenerationMode

from gateway.generation import Generation
from protocol.sampling import TokenLogprob
from tests.support.http_twin import Api, error_of
from tests.support.scripted_dispatcher import EOS_ID, Step, Update, says, small_model

FEW, MANY = 5, 500
"""Requests of each kind a route: here, and in `make test-long`."""


def answers(generation: Generation) -> list[Step]:
    """What is asked for: scores of the prompt, or the same short text of each choice."""
    forced, num_top = generation.sampling.forced_ids, generation.sampling.logprobs
    if forced:
        return [Update(0, 0, forced, (TokenLogprob(-0.5),) * len(forced), "length", -1)]
    steps: list[Step] = []
    for choice in range(generation.num_choices):
        steps += says("abc", choice=choice, end=EOS_ID, num_top=None if num_top < 0 else num_top)
    return steps


@cache
def described() -> dict[str, Any]:
    """The description, with the name of the model that there is: others aren't found."""
    description = Api().get("/openapi.json").json()
    for part in description["components"]["schemas"].values():
        if "model" in part["properties"]:
            part["properties"]["model"] = {"enum": ["toy", None, {}]}
    assert isinstance(description, dict)
    return description


def routes() -> list[tuple[str, str]]:
    return [(method, path) for path, methods in described()["paths"].items() for method in methods]


def is_described(path: str, body: object) -> bool:
    """Whether a body is one of those that the description allows."""
    schema = described()["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return bool(Draft202012Validator({**schema, "components": described()["components"]}).is_valid(body))


def check_answer(response: Any, path: str) -> None:
    """An error has the one form, or Anthropic's on its routes, and is the client's."""
    assert response.status_code < 500, response.text
    if response.status_code >= 400 and path.startswith("/v1/messages"):
        assert response.json()["type"] == "error"
    elif response.status_code >= 400:
        error_of(response, response.status_code)


def check_route(method: str, path: str, mode: GenerationMode, count: int) -> None:
    operation = schemathesis.openapi.from_dict(described())[path][method.upper()]
    api = Api(answers, model=small_model(max_model_len=4096))

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        body = case.body
        raw = body if isinstance(body, bytes) else json.dumps(body).encode() if operation.body else None
        response = api.request(method, case.formatted_path, params=case.query, content=raw)
        check_answer(response, path)
        if response.is_success and operation.body:
            assert not isinstance(body, bytes)
            assert is_described(path, body)

    check()


def each_kind(count: int) -> Callable[..., Any]:
    with_body = [(method, path) for method, path in routes() if "requestBody" in described()["paths"][path][method]]
    return pytest.mark.parametrize(
        ("method", "path", "mode", "count"),
        [
            *((*route, GenerationMode.POSITIVE, count) for route in routes()),
            *((*route, GenerationMode.NEGATIVE, count) for route in with_body),
        ],
        ids=lambda value: str(getattr(value, "value", value)),
    )


@each_kind(FEW)
def test_no_request_breaks_the_server_and_nothing_wrong_is_taken(
    method: str, path: str, mode: GenerationMode, count: int
) -> None:
    check_route(method, path, mode, count)


@pytest.mark.long
@each_kind(MANY)
def test_nor_does_any_of_many(method: str, path: str, mode: GenerationMode, count: int) -> None:
    check_route(method, path, mode, count)
