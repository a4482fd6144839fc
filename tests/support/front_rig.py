"""The whole gateway, HTTP app and dispatcher, over scripted workers, on a virtual clock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from gateway.app import create_app
from gateway.dispatch_settings import DispatchSettings
from gateway.http_settings import HttpSettings
from tests.support.dispatch_rig import QUICK, Connect, Rig
from tests.support.http_twin import CHAT, COMPLETIONS, HELLO
from tests.support.scripted_dispatcher import ids_of, small_model, small_tokenizer
from tests.support.scripted_worker import ScriptedWorker

TEXT = "The capital of France is Paris. " * 40
PATIENT = replace(QUICK, queue_s=60.0)


def say(choice: int, index: int) -> int:
    """Ids of a text that goes on for long; choices are shifted against each other."""
    ids = ids_of(TEXT)
    return ids[(index + choice) % len(ids)]


def text_of(num_tokens: int, choice: int = 0) -> str:
    """What workers say in so many tokens."""
    tokenizer = small_tokenizer()
    return b"".join(tokenizer.token_bytes(say(choice, index)) for index in range(num_tokens)).decode()


class Call:
    """One HTTP request on its way: the client may leave at any time, and stop to read."""

    def __init__(self, app: Any, method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
        self.sent: list[dict[str, Any]] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": body, "more_body": False})
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(),
            "query_string": b"", "root_path": "", "scheme": "http", "server": ("test", 80), "client": ("test", 1),
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }  # fmt: skip
        self.task = asyncio.ensure_future(app(scope, self._incoming.get, self._send))

    async def _send(self, message: dict[str, Any]) -> None:
        await self.reads.wait()
        self.sent.append(message)

    def leave(self) -> None:
        """Close the connection."""
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def done(self) -> Call:
        await self.task
        return self

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        found = self.json["error"]
        assert isinstance(found, dict)
        return found

    @property
    def events(self) -> list[dict[str, Any]]:
        blocks = [block for block in self.body.decode().split("\n\n") if block and not block.startswith(":")]
        assert blocks[-1] == "data: [DONE]"
        return [json.loads(block.removeprefix("data: ")) for block in blocks[:-1]]

    @property
    def text(self) -> str:
        return str(self.json["choices"][0]["message"]["content"])


async def all_done(calls: list[Call]) -> None:
    await asyncio.gather(*(call.task for call in calls))


class Front:
    """A rig with the HTTP app before it."""

    def __init__(self, rig: Rig, settings: HttpSettings, max_model_len: int) -> None:
        self.rig = rig
        self.app = create_app(rig.dispatcher, small_model(max_model_len), settings)

    async def prefill(self, worker_id: str = "p1", **load: object) -> ScriptedWorker:
        return _in_words(await self.rig.prefill(worker_id, **load))

    async def decode(self, worker_id: str = "d1", **load: object) -> ScriptedWorker:
        return _in_words(await self.rig.decode(worker_id, **load))

    def get(self, path: str) -> Call:
        return Call(self.app, "GET", path, b"", {})

    def chat(self, headers: dict[str, str] | None = None, **fields: Any) -> Call:
        body = {"messages": HELLO, "max_tokens": 8, "temperature": 0, **fields}
        return Call(self.app, "POST", CHAT, json.dumps(body).encode(), headers or {})

    def complete(self, **fields: Any) -> Call:
        body = {"prompt": "hello", "max_tokens": 8, "temperature": 0, **fields}
        return Call(self.app, "POST", COMPLETIONS, json.dumps(body).encode(), {})

    async def nothing_left(self) -> None:
        """Neither here nor at the workers."""
        await self.rig.all_let_go()

    @property
    def outcomes(self) -> list[str]:
        return [outcome.kind for outcome in self.rig.counts.outcomes]


def _in_words(worker: ScriptedWorker) -> ScriptedWorker:
    worker.habits.says = say
    return worker


@asynccontextmanager
async def front(
    dispatch: DispatchSettings = PATIENT,
    settings: HttpSettings | None = None,
    max_payload: int = 1 << 20,
    max_model_len: int = 4096,
    connect: Connect | None = None,
) -> AsyncIterator[Front]:
    """The whole, closed afterwards."""
    made = Rig(dispatch, max_payload=max_payload, connect=connect)
    await made.open()
    try:
        yield Front(made, settings or HttpSettings(), max_model_len)
    finally:
        await made.close()
