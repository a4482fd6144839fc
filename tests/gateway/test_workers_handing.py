"""Connections go from the process that accepts them to one that serves them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from gateway.app import create_app
from gateway.http_server import serve_http
from gateway.http_settings import HttpSettings
from gateway.workers.handing import Arrivals, hand_over
from tests.support.http_twin import CHAT, HELLO, run, until
from tests.support.scripted_dispatcher import ScriptedDispatcher, says, small_model


class Entrance:
    """Hands the server what a test accepts."""

    def __init__(self) -> None:
        self.ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.arrivals: Arrivals | None = None
        self.connections: object = ()

    def begin(self, make_protocol, connections) -> None:  # type: ignore[no-untyped-def]
        self.arrivals, self.connections = Arrivals(self._theirs, make_protocol), connections

    async def end(self) -> None:
        assert self.arrivals is not None
        self.ours.shutdown(socket.SHUT_WR)
        await self.arrivals.over.wait()

    def close(self) -> None:
        self.ours.close()
        self._theirs.close()


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Entrance, str]]:
    """A server without a port; whoever connects to ours is handed on."""
    loop, listener, entrance = asyncio.get_running_loop(), socket.create_server(("127.0.0.1", 0)), Entrance()
    listener.setblocking(False)
    stop = asyncio.Event()
    app = create_app(ScriptedDispatcher(says("abc")), small_model(), HttpSettings(max_connections=2))

    async def drained() -> None:
        """Nothing is open."""

    serving = asyncio.ensure_future(serve_http(app, entrance, stop, drained, HttpSettings(max_connections=2)))
    await until(lambda: entrance.arrivals is not None)

    def accept() -> None:
        assert hand_over(entrance.ours, listener.accept()[0])

    loop.add_reader(listener, accept)
    try:
        yield entrance, "http://{}:{}".format(*listener.getsockname())
    finally:
        loop.remove_reader(listener)
        listener.close()
        stop.set()
        await serving
        entrance.close()


def test_a_connection_that_was_handed_over_is_served_as_any_other() -> None:
    async def work() -> None:
        async with served() as (entrance, url), httpx.AsyncClient(base_url=url) as client:
            for _ in range(3):  # one connection, kept open
                answer = await client.post(CHAT, json={"messages": HELLO})
                assert answer.json()["choices"][0]["message"]["content"] == "abc"
            assert entrance.arrivals is not None
            assert entrance.arrivals.num_taken == 1
            assert len(entrance.connections) == 1  # type: ignore[arg-type]

    run(work())


def test_the_bound_on_connections_holds_for_those_that_were_handed_over() -> None:
    async def work() -> None:
        async with served() as (_, url):
            port = int(url.rpartition(":")[2])
            kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
            for _, each in (*kept, (reader, writer)):
                each.close()

    run(work())


def test_what_was_on_its_way_at_the_end_is_taken_before_it_is_over() -> None:
    async def work() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made: list[asyncio.Protocol] = []

        def make() -> asyncio.Protocol:
            made.append(asyncio.Protocol())
            return made[-1]

        far_ends = []
        for _ in range(100):
            one, other = socket.socketpair()
            assert hand_over(ours, one)
            far_ends.append(other)
        ours.shutdown(socket.SHUT_WR)
        arrivals = Arrivals(theirs, make)
        await arrivals.over.wait()
        assert arrivals.num_taken == 100
        await until(lambda: len(made) == 100)
        for each in (*far_ends, ours, theirs):
            each.close()
        await asyncio.sleep(0)  # the far ends are noticed

    run(work())


def test_nothing_is_given_away_to_a_process_that_is_gone_or_takes_nothing() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    far_ends = []
    while True:
        one, other = socket.socketpair()
        far_ends.append(other)
        if not hand_over(ours, one):
            break
    assert one.fileno() > 0  # still ours
    theirs.close()
    assert not hand_over(ours, one)
    for each in (*far_ends, one, ours):
        each.close()
