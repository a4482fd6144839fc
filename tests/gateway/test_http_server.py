"""The end of a gateway, on a real server: open answers go on, newcomers hear a 503, and the bus may be away."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from gateway.app import create_app
from gateway.errors import from_code
from gateway.generation import Generation
from gateway.http_server import serve_http
from gateway.http_settings import HttpSettings
from gateway.lobby import Lobby
from protocol.errors import Code
from tests.support.http_twin import CHAT, HELLO, post_raw, run, until
from tests.support.scripted_dispatcher import ScriptedDispatcher, ScriptedStream, says, small_model


class Draining(ScriptedDispatcher):
    """Ends when a test says so; refuses what comes meanwhile."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.drained = asyncio.Event()
        updates = says("abc xyz")
        super().__init__([*updates[:1], self.go_on, *updates[1:]])
        self.draining = False

    async def drain(self, within_s: float) -> None:
        self.draining = True
        await self.drained.wait()

    async def submit(self, generation: Generation) -> ScriptedStream:
        self.refusal = from_code(Code.DRAINING, "this gateway ends") if self.draining else None
        return await super().submit(generation)


@asynccontextmanager
async def served(lobby: Lobby) -> AsyncIterator[tuple[int, asyncio.Event, asyncio.Task[None]]]:
    listener = socket.create_server(("127.0.0.1", 0))
    stop = asyncio.Event()
    app = create_app(lobby, small_model(), HttpSettings())
    task = asyncio.ensure_future(serve_http(app, listener, stop, lambda: lobby.drain(30.0)))
    try:
        yield listener.getsockname()[1], stop, task
    finally:
        stop.set()
        await task


def test_open_answers_go_on_to_their_end_and_newcomers_hear_a_503_that_says_when() -> None:
    async def work() -> None:
        lobby, dispatcher = Lobby(), Draining()
        lobby.open(dispatcher)  # type: ignore[arg-type]
        async with (
            served(lobby) as (port, stop, task),
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
        ):
            reader, writer = await post_raw(port, CHAT, {"messages": HELLO, "stream": True})
            await reader.readuntil(b"content")
            stop.set()
            await until(lambda: dispatcher.draining)
            response = await client.post(CHAT, json={"messages": HELLO})
            assert (response.status_code, response.json()["error"]["code"]) == (503, "draining")
            assert response.headers["retry-after"]
            assert (await client.get("/live")).status_code == 200
            assert not task.done()
            dispatcher.go_on.set()
            await reader.readuntil(b"[DONE]")
            writer.close()
            dispatcher.drained.set()
            await task

    run(work())


def test_before_the_bus_is_there_it_is_alive_and_not_ready_and_says_why() -> None:
    async def work() -> None:
        lobby = Lobby()
        async with served(lobby) as (port, _, _), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            assert (await client.get("/live")).status_code == 200
            ready = await client.get("/ready")
            assert ready.status_code == 503
            assert [reason["code"] for reason in ready.json()["reasons"]] == ["bus_away"]
            assert (await client.get("/health")).json()["status"] == "unavailable"
            response = await client.post(CHAT, json={"messages": HELLO})
            assert (response.status_code, response.json()["error"]["code"]) == (503, "no_worker")
            assert not lobby.is_open
            lobby.open(ScriptedDispatcher(says("abc")))  # type: ignore[arg-type]
            assert (await client.post(CHAT, json={"messages": HELLO})).status_code == 200
            assert (await client.get("/ready")).status_code == 200
            lobby._dispatcher = None

    run(work())
