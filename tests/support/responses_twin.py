"""POST /v1/responses in tests: bodies and events, each held to OpenAI's description."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from gateway.responses_api.background import Background
from gateway.responses_api.shelf import Shelf
from gateway.responses_api.store import MemoryStore
from tests.support.http_twin import Api, until
from tests.support.openai_schema import check, check_event
from tests.support.scripted_dispatcher import Step

Call = Callable[..., Awaitable[httpx.Response]]
RESPONSES = "/v1/responses"
ENDS = ("response.completed", "response.incomplete", "response.failed")


def ask(api: Api, **fields: Any) -> httpx.Response:
    """POST; `input` has a default."""
    return api.request("POST", RESPONSES, json={"model": "toy", "input": "hello", **fields})


def checked(response: httpx.Response) -> dict[str, Any]:
    """The response that a route told."""
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    check("Response", body)
    return body


def respond(api: Api, **fields: Any) -> dict[str, Any]:
    """POST and return the response."""
    return checked(ask(api, **fields))


def response_events(api: Api, **fields: Any) -> list[dict[str, Any]]:
    """POST a stream and return its events, which are numbered and named by their types."""
    events = events_in(ask(api, stream=True, **fields))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] in ENDS
    return events


def events_in(told: httpx.Response, first: int = 0) -> list[dict[str, Any]]:
    """The events of a stream, which begins with number ``first``."""
    assert told.status_code == 200, told.text
    assert told.headers["content-type"].startswith("text/event-stream")
    *blocks, last = told.text.split("\n\n")
    assert last == ""
    events = []
    for block in (each for each in blocks if not each.startswith(":")):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == first + len(events)
        check_event(event)
        events.append(event)
    return events


def rebuilt(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output that a stream's deltas add up to, checked against what its other events say."""
    output: list[dict[str, Any]] = []
    texts: list[str] = []
    for event in events[2:-1]:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(output)
            output.append(event["item"])
            texts.append("")
            continue
        assert event["output_index"] == len(output) - 1
        if kind.endswith(".delta"):
            assert event["item_id"] == output[-1]["id"]
            texts[-1] += event["delta"]
        elif kind == "output_item.done":
            assert event["item"]["id"] == output[-1]["id"]
            output[-1] = event["item"]
        elif kind == "content_part.done":
            assert event["part"]["text"] == texts[-1]
        elif kind.endswith(".done"):
            assert event["arguments" if "arguments" in kind else "text"] == texts[-1]
    return output


def text_of(response: dict[str, Any]) -> str:
    """All that a response says to the user."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for message in messages for part in message["content"])


class Desk:
    """An app in the running loop, over a store that it may share."""

    def __init__(self, script: list[Step], store: MemoryStore | None = None, **options: Any) -> None:
        self.store = store or MemoryStore()
        self.background = Background(Shelf(self.store))
        self.api = Api(script, background=self.background, **options)

    @asynccontextmanager
    async def calls(self, key: str = "") -> AsyncIterator[Call]:
        """Requests to it; what runs in the background is ended behind."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        transport = httpx.ASGITransport(app=self.api.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            yield client.request
        await self.background.close()

    async def done(self) -> None:
        """Wait until nothing runs."""
        await until(lambda: not self.background.num_running)
