"""One contract for every link, tried on the memory link and on bus links over memory and real NATS."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kvtransfer.link import BusLink, Link, MemoryExchange, MemoryLink
from runtime.errors import PayloadTooLarge
from runtime.memory_bus import MemoryBus, MemoryHub
from runtime.nats_bus import connect_bus

Pair = tuple[Link, Link]


async def memory_pair() -> Pair:
    exchange = MemoryExchange()
    return MemoryLink(exchange), MemoryLink(exchange)


async def bus_pair() -> Pair:
    hub = MemoryHub()
    return BusLink(MemoryBus(hub)), BusLink(MemoryBus(hub))


@pytest.fixture(params=["memory", "memory bus", pytest.param("nats", marks=pytest.mark.nats)])
def make_pair(request: pytest.FixtureRequest) -> Callable[[], Awaitable[Pair]]:
    if request.param == "memory":
        return memory_pair
    if request.param == "memory bus":
        return bus_pair
    url: str = request.getfixturevalue("nats_url")

    async def nats_pair() -> Pair:
        def fail(line: str) -> None:
            raise AssertionError(line)

        buses = [await connect_bus(url, name=f"link-{i}", on_wait=fail) for i in range(2)]
        return BusLink(buses[0]), BusLink(buses[1])

    return nats_pair


async def collect(link: Link, worker_id: str, count: int) -> "asyncio.Future[list[bytes]]":
    done: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
    frames: list[bytes] = []

    def handler(frame: bytes) -> None:
        frames.append(frame)
        if len(frames) == count:
            done.set_result(frames)

    await link.receive(worker_id, handler)
    return done


def test_frames_arrive_whole_and_in_order(make_pair: Callable[[], Awaitable[Pair]]) -> None:
    async def check() -> None:
        sender, receiver = await make_pair()
        sent = [bytes([number]) * size for number, size in enumerate([1, 70_000, 900_000, 3, 0])]
        done = await collect(receiver, "decode-1", len(sent))
        for frame in sent:
            sender.send("decode-1", frame)
            await sender.drain()
        assert await asyncio.wait_for(done, 10) == sent
        await sender.close()
        await receiver.close()

    asyncio.run(check())


def test_a_frame_goes_to_the_named_worker_alone(make_pair: Callable[[], Awaitable[Pair]]) -> None:
    async def check() -> None:
        sender, receiver = await make_pair()
        done = await collect(receiver, "decode-1", 1)
        sender.send("decode-2", b"other")
        sender.send("decode-1", b"mine")
        await sender.drain()
        assert await asyncio.wait_for(done, 10) == [b"mine"]
        await receiver.close()
        sender.send("decode-1", b"late")
        await sender.drain()
        await receiver.close()
        await sender.close()
        assert done.result() == [b"mine"]

    asyncio.run(check())


def test_a_frame_over_the_limit_is_refused_at_once(make_pair: Callable[[], Awaitable[Pair]]) -> None:
    async def check() -> None:
        sender, receiver = await make_pair()
        with pytest.raises(PayloadTooLarge):
            sender.send("decode-1", bytes(sender.max_frame_bytes + 1))
        await sender.close()
        await receiver.close()

    asyncio.run(check())
