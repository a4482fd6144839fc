"""Which process gets a connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass

import pytest

from gateway.listening import listen
from gateway.workers import door as doors
from gateway.workers.door import Door
from tests.support.http_twin import run, until


@dataclass
class Worker:
    """As the door sees one."""

    number: int
    ready: bool = True
    silent: bool = False
    serves: bool = True
    has_room: bool = True
    num_open: int = 0

    def take(self, connection: socket.socket) -> bool:
        if self.has_room:
            self.num_open += 1
            connection.close()
        return self.has_room


@asynccontextmanager
async def door_of(*workers: Worker) -> AsyncIterator[tuple[str, int]]:
    listener = listen("127.0.0.1", 0)
    door = Door(listener, {each.number: each for each in workers})  # type: ignore[misc]
    door.open()
    try:
        yield listener.getsockname()
    finally:
        door.close()


async def come(address: tuple[str, int], num_clients: int = 1) -> None:
    """Connect, and see the connection's end: it was given away."""
    for _ in range(num_clients):
        reader, writer = await asyncio.open_connection(*address)
        assert await reader.read() == b""
        writer.close()


def opened(*workers: Worker, num_clients: int) -> list[int]:
    async def work() -> None:
        async with door_of(*workers) as address:
            await come(address, num_clients)

    run(work())
    return [each.num_open for each in workers]


def test_newcomers_spread_evenly() -> None:
    assert opened(Worker(1), Worker(2), Worker(3), num_clients=32) == [11, 11, 10]


def test_who_has_fewer_connections_is_filled_up_first() -> None:
    assert opened(Worker(1, num_open=10), Worker(2, num_open=4), num_clients=8) == [11, 11]


def test_who_is_ready_goes_first_and_who_is_not_is_better_than_nobody() -> None:
    assert opened(Worker(1, ready=False), Worker(2, num_open=9), num_clients=3) == [0, 12]
    assert opened(Worker(1, ready=False), Worker(2, ready=False), num_clients=4) == [2, 2]


def test_who_has_not_been_heard_for_long_comes_last() -> None:
    assert opened(Worker(1, silent=True), Worker(2, ready=False), num_clients=3) == [0, 3]


def test_who_has_no_room_is_passed_by() -> None:
    assert opened(Worker(1, has_room=False), Worker(2, num_open=9), num_clients=3) == [0, 12]


def test_who_comes_while_nobody_serves_waits_and_is_served_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "AGAIN_S", 0.001)

    async def work() -> None:
        worker = Worker(1, serves=False)
        async with door_of(worker) as address:
            coming = [asyncio.ensure_future(come(address)) for _ in range(5)]
            door_looked = asyncio.get_running_loop().time() + 0.01
            await until(lambda: asyncio.get_running_loop().time() > door_looked)
            assert not any(each.done() for each in coming)
            worker.serves = True
            await asyncio.gather(*coming)
        assert worker.num_open == 5

    run(work())


def test_a_closed_door_refuses() -> None:
    async def work() -> None:
        async with door_of(Worker(1)) as address:
            await come(address)
        with closing(socket.socket()) as late, pytest.raises(ConnectionRefusedError):
            late.connect(address)

    run(work())
