"""POST /v1/embeddings: vectors of texts, as numbers and as OpenAI's own client asks for them."""

import base64
import struct
from collections.abc import Iterable
from typing import Any

import pytest

from gateway.errors import GatewayError
from gateway.generation import Generation, Update
from tests.support.http_twin import Api
from tests.support.openai_schema import check
from tests.support.scripted_dispatcher import Step, ids_of

EMBEDDINGS = "/v1/embeddings"


def vector_of(generation: Generation) -> tuple[float, ...]:
    return (0.5, float(len(generation.prompt_ids)), -1.25)


def vectors(generation: Generation) -> Iterable[Step]:
    assert generation.sampling.pooling
    return [Update(0, 0, (), (), "stop", -1, struct.pack("<3f", *vector_of(generation)))]


def embed(api: Api, **fields: Any) -> dict[str, Any]:
    response = api.request("POST", EMBEDDINGS, json=fields)
    assert response.status_code == 200, response.text
    body = response.json()
    assert isinstance(body, dict)
    return body


@pytest.mark.parametrize(
    ("given", "lengths"),
    [
        ("hello", [len(ids_of("hello"))]),
        (["hello", "abc xyz"], [len(ids_of("hello")), len(ids_of("abc xyz"))]),
        ([5, 6, 7], [3]),
        ([[5, 6], [7]], [2, 1]),
    ],
)
def test_each_text_gets_its_vector_in_order(given: object, lengths: list[int]) -> None:
    body = embed(Api(vectors), input=given)
    check("CreateEmbeddingResponse", body)
    assert [each["embedding"] for each in body["data"]] == [[0.5, float(length), -1.25] for length in lengths]
    assert [each["index"] for each in body["data"]] == list(range(len(lengths)))
    assert body["usage"] == {"prompt_tokens": sum(lengths), "total_tokens": sum(lengths)}
    assert body["model"] == "toy"


def test_base64_holds_the_same_numbers() -> None:
    body = embed(Api(vectors), input="hello", encoding_format="base64")
    raw = base64.b64decode(body["data"][0]["embedding"])
    assert struct.unpack("<3f", raw) == (0.5, float(len(ids_of("hello"))), -1.25)


def test_workers_are_told_what_is_asked_for() -> None:
    api = Api(vectors)
    embed(api, input=["hello", "abc"], pooling="mean", cache_salt="x", user="me")
    assert {each.sampling.pooling for each in api.dispatcher.generations} == {"mean"}
    assert {each.cache_salt for each in api.dispatcher.generations} == {"x"}
    assert {each.sampling.max_tokens for each in api.dispatcher.generations} == {1}
    api = Api(vectors)
    embed(api, input="hello world abc", truncate_prompt_tokens=2)
    [generation] = api.dispatcher.generations
    assert len(generation.prompt_ids) == 2
    assert generation.sampling.pooling == "last"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": [10**9]}, "input"),
        ({"input": "x" * 100_000}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "encoding_format": "bytes"}, "encoding_format"),
        ({"input": "a", "pooling": "max"}, "pooling"),
        ({"input": "a", "dimensions": 16}, "dimensions"),
        ({"input": "a", "model": "no"}, "model"),
    ],
)
def test_what_cannot_be_embedded_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    api = Api(vectors)
    response = api.request("POST", EMBEDDINGS, json=fields)
    assert response.status_code == (404 if param == "model" else 400)
    assert response.json()["error"]["param"] == param
    assert not api.dispatcher.generations


def test_what_fails_for_one_fails_for_all() -> None:
    def script(generation: Generation) -> Iterable[Step]:
        if len(generation.prompt_ids) == 2:
            return [GatewayError(503, "no worker", type="server_error", code="no_worker")]
        return vectors(generation)

    response = Api(script).request("POST", EMBEDDINGS, json={"input": [[5, 6], [7], [8]]})
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "no_worker"


def test_the_page_of_routes_describes_it() -> None:
    page = Api().get("/openapi.json").json()
    schema = page["paths"][EMBEDDINGS]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["input"]
