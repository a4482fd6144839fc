"""A worker's seat: what its pages show is of all, and it says when the others can't be asked."""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx
import pytest

from gateway.app import create_app
from gateway.http_settings import HttpSettings
from gateway.metrics import HttpMetrics
from gateway.settings import GatewaySettings
from gateway.workers import seat as seats
from gateway.workers.line import Hear, Line, open_line
from gateway.workers.seat import Briefing, Seat, take_seat
from runtime.metrics import Metrics
from tests.support.http_twin import run, until
from tests.support.scripted_dispatcher import ScriptedDispatcher, says, small_model


class Supervisor:
    """The other end: a channel, a line, and what a test lets it answer."""

    def __init__(self) -> None:
        self.channel, their_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line_end, their_line = socket.socketpair()
        self.seat = Seat(Briefing(GatewaySettings(), "http://here", 2, 0), their_channel, their_line)
        self.metrics = HttpMetrics(Metrics())
        self.stands: list[list[object]] = []
        self.left = asyncio.Event()
        self.line: Line | None = None

    async def open(self, answers: Mapping[str, Hear], *, ready: bool) -> None:
        hear: dict[str, Hear] = {"standing": self.stands.append, "leaving": lambda _: self.left.set()}
        self.line = await open_line(self._line_end, {**hear, **answers})
        self.line.start()
        await self.seat.join(self.metrics, lambda: ready)


@asynccontextmanager
async def seated(answers: Mapping[str, Hear], *, ready: bool = True) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor()
    await supervisor.open(answers, ready=ready)
    assert supervisor.line is not None
    try:
        yield supervisor
    finally:
        await supervisor.seat.close()
        await supervisor.line.close()
        supervisor.channel.close()


def pages(supervisor: Supervisor) -> httpx.AsyncClient:
    app = create_app(ScriptedDispatcher(says("abc")), small_model(), HttpSettings(), supervisor.metrics)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


def test_its_pages_show_what_all_have_together() -> None:
    async def work() -> None:
        answers: dict[str, Hear] = {"metrics": lambda _: "things_total 7\n", "load": lambda _: 5}
        async with seated(answers) as supervisor, pages(supervisor) as client:
            page = await client.get("/metrics")
            assert (page.status_code, page.text) == (200, "things_total 7\n")
            assert page.headers["content-type"].startswith("text/plain")
            assert (await client.get("/load")).json() == {"server_load": 4}  # beside this one

    run(work())


def test_where_the_others_cannot_be_asked_its_pages_say_so_instead_of_showing_less() -> None:
    async def work() -> None:
        async with seated({}) as supervisor, pages(supervisor) as client:
            assert supervisor.line is not None
            await supervisor.line.close()
            for path in ("/metrics", "/load"):
                answer = await client.get(path)
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_answer")
            assert (await client.get("/live")).status_code == 200

    run(work())


def test_it_answers_for_its_own_process() -> None:
    async def work() -> None:
        async with seated({}) as supervisor:
            assert supervisor.line is not None
            supervisor.metrics.began()
            assert await supervisor.line.ask("load", 10.0) == 1
            names = {family[0] for family in await supervisor.line.ask("metrics", 10.0)}
            assert {"kvferry_gateway_requests", "process_cpu_seconds"} <= names

    run(work())


def test_it_says_how_it_stands_until_it_leaves() -> None:
    async def work() -> None:
        async with seated({}, ready=False) as supervisor:
            supervisor.seat.begin(asyncio.Protocol, range(3))
            await until(lambda: bool(supervisor.stands))
            assert supervisor.stands[0] == [0, 3, False]
            leaving = asyncio.ensure_future(supervisor.seat.end())
            await supervisor.left.wait()
            assert not leaving.done()
            supervisor.channel.shutdown(socket.SHUT_WR)
            await leaving

    run(work())


def test_it_leaves_though_nobody_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats, "LAST_S", 0.01)

    async def work() -> None:
        async with seated({}) as supervisor:
            supervisor.seat.begin(asyncio.Protocol, ())
            await supervisor.seat.end()

    run(work())


def test_a_worker_learns_by_its_channel_what_it_is_to_do() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ends = socket.socketpair()
    settings = GatewaySettings(gateway_id="gateway-a-w1", api_key=("secret",), port=1234)
    with ours, ends[0]:
        briefing = Briefing(settings, "http://here", 2, 1_700_000_000)
        ours.send(pickle.dumps(briefing))
        flags = ["--channel-fd", str(theirs.detach()), "--line-fd", str(ends[1].detach())]
        told, seat = take_seat([*flags, "--gateway-id", "gateway-a-w1"])
        assert told == settings
        assert seat.briefing == briefing
        run(seat.close())
        seat._line_end.close()
