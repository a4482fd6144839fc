"""Streams whose first token takes long: their status waits for it, but not for ever."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import httpx

from gateway.errors import GatewayError
from gateway.generation import Generation, Update
from gateway.http_settings import HttpSettings
from protocol.sampling import TokenLogprob
from tests.support.http_twin import CHAT, COMPLETIONS, HELLO, Api, events_of, run
from tests.support.scripted_dispatcher import Step, says

QUICK = replace(HttpSettings(), first_byte_hold_s=0.05, keepalive_s=0.02)


def after(gate: asyncio.Event, then: Iterable[Step]) -> Any:
    def script(generation: Generation) -> Iterable[Step]:
        return [gate, *then]

    return script


async def stream(api: Api, gate: asyncio.Event, seconds: float) -> httpx.Response:
    """Ask for a stream whose first token comes after some seconds."""
    asyncio.get_running_loop().call_later(seconds, gate.set)
    transport = httpx.ASGITransport(app=api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.post(CHAT, json={"messages": HELLO, "stream": True})


def asked(then: Iterable[Step], seconds: float, settings: HttpSettings = QUICK) -> httpx.Response:
    async def ask() -> httpx.Response:
        gate = asyncio.Event()
        return await stream(Api(after(gate, then), settings=settings), gate, seconds)

    response = run(ask())
    assert isinstance(response, httpx.Response)
    return response


def test_a_late_first_token_finds_a_stream_that_has_begun() -> None:
    response = asked(says("Paris"), 0.2)
    assert response.status_code == 200
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines.count(": keep-alive") >= 3
    assert lines[0] == ": keep-alive"
    assert lines[-1] == "data: [DONE]"
    assert "Pa" in response.text


def test_an_early_one_is_waited_for() -> None:
    response = asked(says("Paris"), 0.01, HttpSettings())
    assert ": keep-alive" not in response.text
    assert response.headers["x-kvferry-path"] == "split"


def test_what_goes_wrong_is_a_status_while_that_waits_and_an_event_after() -> None:
    error = GatewayError(503, "no worker", type="server_error", code="no_worker")
    early, late = asked([error], 0.01, HttpSettings()), asked([error], 0.2)
    assert early.status_code == 503
    assert late.status_code == 200
    assert '"code":"no_worker"' in late.text
    assert late.text.endswith("data: [DONE]\n\n")


def test_an_answer_in_one_piece_waits_for_all() -> None:
    async def ask() -> httpx.Response:
        gate = asyncio.Event()
        api = Api(after(gate, says("Paris")), settings=QUICK)
        asyncio.get_running_loop().call_later(0.2, gate.set)
        transport = httpx.ASGITransport(app=api.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post(CHAT, json={"messages": HELLO})

    assert run(ask()).json()["choices"][0]["message"]["content"] == "Paris"


def test_an_echo_that_comes_late_has_its_probabilities() -> None:
    async def ask() -> httpx.Response:
        gate = asyncio.Event()

        def script(generation: Generation) -> Iterable[Step]:
            forced = generation.sampling.forced_ids
            scores = (TokenLogprob(-0.5),) * len(forced)
            return [gate, Update(0, 0, forced, scores, "length", -1)] if forced else says("!", num_top=0)

        api = Api(script, settings=QUICK)
        asyncio.get_running_loop().call_later(0.2, gate.set)
        transport = httpx.ASGITransport(app=api.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            body = {"prompt": "hello world", "echo": True, "logprobs": 0, "stream": True}
            return await client.post(COMPLETIONS, json=body)

    response = run(ask())
    first = events_of(response)[0]["choices"][0]
    assert first["text"] == "hello world"
    assert first["logprobs"]["token_logprobs"][1:] == [-0.5] * (len(first["logprobs"]["tokens"]) - 1)
