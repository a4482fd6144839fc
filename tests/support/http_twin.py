"""Calls into the HTTP app: inside the process, or through a real server on a free port."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import httpx
import uvicorn
from llguidance import LLMatcher
from starlette.types import ASGIApp

from gateway.app import create_app
from gateway.grammars.checker import LIMITS
from gateway.grammars.checking import in_words
from gateway.grammars.errors import GrammarRefused
from gateway.http_settings import HttpSettings
from gateway.key_ring import KeyRing
from gateway.limiter import Limiter
from gateway.metrics import HttpMetrics
from gateway.responses_api.background import Background
from gateway.served_model import ServedModel
from runtime.metrics import Metrics
from tests.support.scripted_dispatcher import Script, ScriptedDispatcher, Step, small_model

DEADLINE_S = 20.0
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run `work` in a loop of its own, with a deadline."""

    async def bounded() -> Any:
        async with asyncio.timeout(DEADLINE_S):
            return await work

    return asyncio.run(bounded())


class InlineCheck:
    """Checks grammars where it is asked, as the process aside would."""

    async def check(self, grammar: str) -> None:
        fault = LLMatcher.validate_grammar(grammar, limits=LIMITS)
        if fault:
            raise GrammarRefused(in_words(fault))


class Api:
    """The app over a scripted dispatcher; one call after the other."""

    def __init__(
        self,
        script: Script | Sequence[Step] = (),
        *,
        model: ServedModel | None = None,
        settings: HttpSettings | None = None,
        key: str | None = None,
        keys: KeyRing | None = None,
        limiter: Limiter | None = None,
        background: Background | None = None,
    ) -> None:
        self.dispatcher = ScriptedDispatcher(script)
        self.metrics = Metrics()
        self.app: ASGIApp = create_app(
            self.dispatcher,
            model or small_model(),
            settings or HttpSettings(),
            HttpMetrics(self.metrics),
            keys,
            limiter,
            InlineCheck(),
            background,
        )
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send one request and return the whole response."""

        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=self._headers) as client:
                return await client.request(method, path, **options)

        response = run(call())
        assert isinstance(response, httpx.Response)
        return response

    def get_metrics(self) -> str:
        """Return what /metrics would say."""
        return self.metrics.render().decode()

    def get(self, path: str, **options: Any) -> httpx.Response:
        """GET."""
        return self.request("GET", path, **options)

    def chat(self, **fields: Any) -> httpx.Response:
        """POST a chat; `messages` has a default."""
        return self.request("POST", CHAT, json={"model": "toy", "messages": HELLO, **fields})

    def complete(self, **fields: Any) -> httpx.Response:
        """POST a completion; `prompt` has a default."""
        return self.request("POST", COMPLETIONS, json={"model": "toy", "prompt": "hello", **fields})

    def chat_events(self, **fields: Any) -> list[dict[str, Any]]:
        """POST a streamed chat and return its events."""
        return events_of(self.chat(stream=True, **fields))

    def complete_events(self, **fields: Any) -> list[dict[str, Any]]:
        """POST a streamed completion and return its events."""
        return events_of(self.complete(stream=True, **fields))


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """Check the form of an event stream and return its events without [DONE]."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.content.decode("utf-8").split("\n\n")
    assert blocks.pop() == ""
    assert blocks.pop() == "data: [DONE]"
    lines = [block for block in blocks if not block.startswith(":")]
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def text_of(events: list[dict[str, Any]], choice: int = 0) -> str:
    """Join what a stream says in one choice."""
    parts = [part for event in events for part in event["choices"] if part["index"] == choice]
    return "".join(part.get("text") or part.get("delta", {}).get("content", "") for part in parts)


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """Check the form of an error and return what it says."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error, dict)
    return error


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, send_buffer: int = 0) -> AsyncIterator[int]:
    """Serve `app` on a free loopback port, in the running loop; the kernel's buffer may be small."""
    listener = socket.create_server(("127.0.0.1", 0))
    if send_buffer:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    port: int = listener.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    task = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        yield port
    finally:
        server.should_exit = True
        await task


async def post_raw(port: int, path: str, body: object) -> tuple[asyncio.StreamReader, Any]:
    """Send a POST on a connection of its own, to be read or dropped by the caller."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {len(raw)}\r\n\r\n"
    writer.write(head.encode() + raw)
    await writer.drain()
    return reader, writer


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks run until `condition` holds; the caller has a deadline."""
    while not condition():
        await asyncio.sleep(0)
