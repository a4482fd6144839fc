"""Requests made from the API's own description, right and wrong: none breaks the server, nothing wrong is taken."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator
from schemathesis.generation import GenerationMode

from gateway.anthropic_errors import is_anthropic
from gateway.generation import Generation
from protocol.sampling import TokenLogprob
from tests.support.http_twin import Api, error_of
from tests.support.scripted_dispatcher import EOS_ID, Step, Update, says, small_model

KEPT = "resp_kept"
"""Stands for the id of a response that there is."""

FEW, MANY = 5, 500
"""Requests of each kind a route: here, and in `make test-long`."""


def answers(generation: Generation) -> list[Step]:
    """What is asked for: a vector, scores of the prompt, or the same short text of each choice."""
    forced, num_top = generation.sampling.forced_ids, generation.sampling.logprobs
    if generation.sampling.pooling:
        return [Update(0, 0, (), (), "stop", -1, struct.pack("<2f", 0.6, 0.8))]
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
    assert isinstance(description, dict)
    for path, operations in description["paths"].items():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] == "response_id":
                    parameter["schema"] = {"anyOf": [{"enum": [KEPT]}, {"type": "string", "minLength": 1}]}
        for schema in bodies(description, path):
            schema["properties"]["model"] = {"enum": ["toy", None, {}]}
    return description


def bodies(description: dict[str, Any], path: str) -> list[dict[str, Any]]:
    """The schemas of a route's body; none if it takes none."""
    operation = description["paths"][path].get("post", {})
    if "requestBody" not in operation:
        return []
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    return list(schema.get("anyOf", [schema]))


def takes_anything(method: str, path: str) -> bool:
    """Whether there is anything in a route's requests that could be wrong."""
    operation = described()["paths"][path][method]
    return "requestBody" in operation or any(each["in"] == "query" for each in operation.get("parameters", ()))


def is_described(path: str, body: object) -> bool:
    """Whether a body is one of those that the description allows."""
    return any(Draft202012Validator(schema).is_valid(body) for schema in bodies(described(), path))


def check_answer(path: str, response: httpx.Response) -> None:
    """An error has the one form of its route and is the client's."""
    assert response.status_code < 500, response.text
    if response.is_success:
        return
    if is_anthropic(path):
        assert response.json()["type"] == "error"
    else:
        error_of(response, response.status_code)


def check_route(method: str, path: str, mode: GenerationMode, count: int) -> None:
    operation = schemathesis.openapi.from_dict(described())[path][method.upper()]
    api = Api(answers, model=small_model(max_model_len=4096))

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        body = case.body
        raw = body if isinstance(body, bytes) else json.dumps(body).encode() if operation.body else None
        at = case.formatted_path
        if KEPT in at:
            at = at.replace(KEPT, api.request("POST", "/v1/responses", json={"input": "hello"}).json()["id"])
        response = api.request(method, at, params=case.query, content=raw)
        check_answer(path, response)
        if response.is_success and operation.body:
            assert not isinstance(body, bytes)
            assert is_described(path, body)

    check()


def each_kind(count: int) -> Callable[..., Any]:
    """All routes with what is described, and those that take a body or a query with what isn't."""
    routes = [(method, path) for path, methods in described()["paths"].items() for method in methods]
    kinds = [(*route, GenerationMode.POSITIVE, count) for route in routes]
    kinds += [(*route, GenerationMode.NEGATIVE, count) for route in routes if takes_anything(*route)]
    names = ("method", "path", "mode", "count")
    return pytest.mark.parametrize(names, kinds, ids=lambda value: str(getattr(value, "value", value)))


@each_kind(FEW)
def test_no_request_breaks_the_server_and_nothing_wrong_is_taken(
    method: str, path: str, mode: GenerationMode, count: int
) -> None:
    check_route(method, path, mode, count)


@pytest.mark.long
@each_kind(MANY)
def test_nor_does_any_of_many(method: str, path: str, mode: GenerationMode, count: int) -> None:
    check_route(method, path, mode, count)
