"""The client's own name for a request: in a header, or in the body."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from gateway.access_log import MAX_LABEL_CHARS
from gateway.generation import Generation
from tests.support.http_twin import CHAT, COMPLETIONS, HELLO, Api, error_of, run
from tests.support.scripted_dispatcher import ids_of, says

PATHS = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])


def ask(api: Api, path: str, header: str = "", **fields: Any) -> httpx.Response:
    body = {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
    return api.request("POST", path, json={**body, **fields}, headers={"x-request-id": header} if header else {})


@PATHS
@pytest.mark.parametrize("stream", [False, True])
def test_one_in_the_body_goes_where_one_in_the_header_goes(path: str, stream: bool) -> None:
    api = Api(says("abc"))
    response = ask(api, path, request_id="mine", stream=stream)
    assert response.headers["x-request-id"] == "mine"
    assert api.dispatcher.generations[0].label == "mine"
    assert response.headers["x-kvferry-request-id"] == "req0"


@PATHS
def test_the_header_goes_before_the_body(path: str) -> None:
    api = Api(says("abc"))
    assert ask(api, path, "header", request_id="body").headers["x-request-id"] == "header"
    assert api.dispatcher.generations[0].label == "header"


@PATHS
def test_a_long_one_is_cut(path: str) -> None:
    response = ask(Api(says("abc")), path, request_id="a" * 8192)
    assert response.headers["x-request-id"] == "a" * MAX_LABEL_CHARS
    assert "x-request-id" not in ask(Api(says("abc")), path, request_id="  ").headers


@PATHS
@pytest.mark.parametrize("given", ["a\r\nset-cookie: x", "\u00fc", "\x00", 7, ["a"]])
def test_what_cannot_go_back_in_a_header_is_refused_by_name(path: str, given: object) -> None:
    response = ask(Api(says("abc")), path, request_id=given)
    assert error_of(response, 400)["param"] == "request_id"
    assert "set-cookie" not in response.headers


def test_two_requests_of_one_name_have_their_own_answers() -> None:
    """Replays vllm #10583, vllm #27987."""

    def script(generation: Generation) -> Any:
        return says("Paris" if generation.prompt_ids == ids_of("abc") else "hello")

    async def work() -> None:
        api = Api(script)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=api.app), base_url="http://test") as client:
            for _ in range(2):
                bodies = [{"prompt": prompt, "request_id": "same"} for prompt in ("abc", "xyz")]
                answers = await asyncio.gather(*(client.post(COMPLETIONS, json=body) for body in bodies))
                assert [each.json()["choices"][0]["text"] for each in answers] == ["Paris", "hello"]
                assert len({each.json()["id"] for each in answers}) == 2

    run(work())
