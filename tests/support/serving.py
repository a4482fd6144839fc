"""All of the product in one process, on a virtual clock: HTTP app, dispatcher, workers with a toy model and grammars.

Its answers are noise that depends on every token before them; a grammar or a bias makes them what a test wants.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from engine.toy_model import ToyModel
from gateway.app import create_app
from gateway.http_settings import HttpSettings
from tests.support.dispatch_rig import run
from tests.support.front_rig import Call
from tests.support.http_twin import CHAT, COMPLETIONS, HELLO, InlineCheck
from tests.support.inline_guides import InlineGuides
from tests.support.scripted_dispatcher import small_model, small_tokenizer
from tests.support.stack import until
from tests.support.world import World

SPLIT = ("prefill-1", "decode-1")
ONE = ("decode-1",)
GATEWAY = "gateway-1"
KNOWN_S = 1.5
"""Within which a gateway knows its workers."""


@cache
def guides() -> InlineGuides:
    return InlineGuides(small_tokenizer().to_json(), small_tokenizer().vocab_size)


class Serving:
    """A world with the HTTP app before it."""

    def __init__(self, world: World, settings: HttpSettings) -> None:
        self.world = world
        self._settings = settings
        self.open_app()

    def open_app(self) -> None:
        """Make the app, as its gateway is now."""
        dispatcher = self.world.gateways[GATEWAY].dispatcher
        self.app = create_app(dispatcher, small_model(2048), self._settings, grammars=InlineCheck())

    def call(self, path: str, **fields: Any) -> Call:
        return Call(self.app, "POST", path, json.dumps(fields).encode(), {})

    def chat(self, **fields: Any) -> Call:
        return self.call(CHAT, **{"messages": HELLO, "temperature": 0, "max_tokens": 8, **fields})

    def complete(self, **fields: Any) -> Call:
        return self.call(COMPLETIONS, **{"prompt": "hello", "temperature": 0, "max_tokens": 8, **fields})

    async def chatted(self, **fields: Any) -> dict[str, Any]:
        """The one choice of a chat that is served, with its usage; joined if it is streamed."""
        return joined(await self.chat(**_with_usage(fields)).done(), "chat")

    async def completed(self, **fields: Any) -> dict[str, Any]:
        """The one choice of a completion likewise."""
        return joined(await self.complete(**_with_usage(fields)).done(), "text")

    async def drained(self, within_s: float = 5.0) -> None:
        """Nothing is held anywhere, and it still answers."""
        dispatcher = self.world.gateways[GATEWAY].dispatcher
        await until(lambda: not any(dispatcher.counts().values()), within_s)
        await self.world.stack.idle(within_s)
        assert (await self.chat(max_tokens=4).done()).status == 200
        await self.world.stack.idle(within_s)


def _with_usage(fields: dict[str, Any]) -> dict[str, Any]:
    return {"stream_options": {"include_usage": True}, **fields} if fields.get("stream") else fields


def joined(call: Call, kind: str, choice: int = 0) -> dict[str, Any]:
    """What a call says in one choice: text, calls, finish reason, usage, deltas."""
    assert call.status == 200, call.body
    if call.headers["content-type"].startswith("application/json"):
        body = call.json
        said = body["choices"][choice]
        message = said["message"] if kind == "chat" else {"content": said["text"]}
        found = {"text": message["content"] or "", "calls": message.get("tool_calls"), "messages": [message]}
        return {**found, "finish_reason": said["finish_reason"], "usage": body["usage"]}
    parts = [part for event in call.events for part in event["choices"] if part["index"] == choice]
    deltas = [part["delta"] if kind == "chat" else {"content": part["text"]} for part in parts]
    [reason] = [part["finish_reason"] for part in parts if part["finish_reason"]]
    text = "".join(delta.get("content") or "" for delta in deltas)
    usage = call.events[-1].get("usage")
    return {"text": text, "calls": _calls(deltas), "messages": deltas, "finish_reason": reason, "usage": usage}


def _calls(deltas: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Calls that deltas add up to; ids and names come once, in the order of their indices."""
    calls: list[dict[str, Any]] = []
    for part in (part for delta in deltas for part in delta.get("tool_calls") or ()):
        if "id" in part:
            assert part["index"] == len(calls)
            calls.append({**part, "function": dict(part["function"])})
        else:
            assert "name" not in part["function"]
            calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    return calls or None


@asynccontextmanager
async def serving(
    *workers: str, num_blocks: int = 256, settings: HttpSettings | None = None, **worker_settings: object
) -> AsyncIterator[Serving]:
    """The whole with these workers, ``SPLIT`` if none are named. One decode worker alone prefills too."""
    chosen = workers or SPLIT
    alone = {"local_prefill_tokens": -1} if chosen == ONE else {}
    toy = ToyModel(vocab_size=small_tokenizer().vocab_size)
    world = World(model=toy, num_blocks=num_blocks, guides=guides(), **{**alone, **worker_settings})
    for worker_id in chosen:
        await world.add(worker_id)
    await world.add_gateway(GATEWAY)
    try:
        await asyncio.sleep(KNOWN_S)
        yield Serving(world, settings or HttpSettings())
    finally:
        await world.close()


def served(work: Callable[[Serving], Coroutine[Any, Any, Any]], *workers: str, **settings: Any) -> Any:
    """What ``work`` returns; afterwards nothing is left and it still answers."""
    found: list[Any] = []

    async def inner() -> None:
        async with serving(*workers, **settings) as s:
            found.append(await work(s))
            await s.drained()

    run(inner())
    return found[0]
