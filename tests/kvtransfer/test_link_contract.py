"""One contract for every link: memory, buses in memory and real NATS, shared memory, process groups by gloo."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kvtransfer.auto_link import AutoLink
from kvtransfer.direct_link import DirectLink
from kvtransfer.group_link import GroupLink
from kvtransfer.link import BusLink, Link, MemoryExchange, MemoryLink
from kvtransfer.pair_group import Gloo
from kvtransfer.shm_link import ShmLink
from protocol.messages import Peer
from runtime.errors import PayloadTooLarge
from runtime.memory_bus import MemoryBus, MemoryHub
from runtime.nats_bus import connect_bus
from runtime.postbox import Postbox
from tests.support.stack import until

Pair = tuple[Link, Link]
P, D = Peer("prefill-1", "1"), Peer("decode-1", "1")
OTHER = Peer("decode-2", "1")
SEGMENT_BYTES = 8 << 20


async def memory_pair() -> Pair:
    exchange = MemoryExchange()
    return MemoryLink(exchange), MemoryLink(exchange)


async def bus_pair() -> Pair:
    hub = MemoryHub()
    return BusLink(MemoryBus(hub)), BusLink(MemoryBus(hub))


async def gloo_pair() -> Pair:
    hub = MemoryHub()
    boxes = [Postbox(MemoryBus(hub), me) for me in (P, D)]
    for box in boxes:
        await box.open()
    sender, receiver = (GroupLink(box, "gloo", Gloo("127.0.0.1")) for box in boxes)
    return sender, receiver


@pytest.fixture(params=["memory", "memory bus", pytest.param("nats", marks=pytest.mark.nats), "shm", "auto", "gloo"])
def make_pair(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Awaitable[Pair]]:
    if request.param == "memory":
        return memory_pair
    if request.param == "memory bus":
        return bus_pair
    if request.param == "gloo":
        return gloo_pair

    async def shm_pair() -> tuple[ShmLink, ShmLink]:
        return ShmLink(tmp_path, P, SEGMENT_BYTES), ShmLink(tmp_path, D, SEGMENT_BYTES)

    async def auto_pair() -> Pair:
        sender, receiver = await shm_pair()
        hub = MemoryHub()
        return AutoLink(sender, BusLink(MemoryBus(hub))), AutoLink(receiver, BusLink(MemoryBus(hub)))

    if request.param == "shm":
        return shm_pair
    if request.param == "auto":
        return auto_pair
    url: str = request.getfixturevalue("nats_url")

    async def nats_pair() -> Pair:
        def fail(line: str) -> None:
            raise AssertionError(line)

        buses = [await connect_bus(url, name=f"link-{i}", on_wait=fail) for i in range(2)]
        return BusLink(buses[0]), BusLink(buses[1])

    return nats_pair


async def collect(link: Link, me: Peer, count: int) -> "asyncio.Future[list[bytes]]":
    done: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
    frames: list[bytes] = []

    def handler(frame: memoryview) -> None:
        frames.append(bytes(frame))
        if len(frames) == count:
            done.set_result(frames)

    await link.receive(me, handler)
    return done


async def agreed(sender: Link, to: Peer) -> None:
    """Both ends know whether they share memory."""
    sender.offer(to)
    if isinstance(sender, (DirectLink, AutoLink)):
        await until(lambda: to.id in sender.sharing)


def test_frames_arrive_whole_and_in_order(make_pair: Callable[[], Awaitable[Pair]]) -> None:
    async def check() -> None:
        sender, receiver = await make_pair()
        sent = [bytes([number]) * size for number, size in enumerate([1, 70_000, 900_000, 3, 0])]
        done = await collect(receiver, D, len(sent))
        await agreed(sender, D)
        for frame in sent:
            sender.send(D, [frame])
            await sender.drain(D)
        assert await asyncio.wait_for(done, 10) == sent
        await sender.close()
        await receiver.close()

    asyncio.run(check())


def test_stretches_of_a_frame_arrive_as_one(make_pair: Callable[[], Awaitable[Pair]]) -> None:
    async def check() -> None:
        sender, receiver = await make_pair()
        done = await collect(receiver, D, 1)
        await agreed(sender, D)
        stretches = [bytes([number % 251]) * (number % 7) for number in range(3000)]
        changing = bytearray(b"as it was")
        sender.send(D, [*stretches, memoryview(changing)])
        changing[:] = b"different"
        await sender.drain(D)
        assert await asyncio.wait_for(done, 10) == [b"".join(stretches) + b"as it was"]
        await sender.close()
        await receiver.close()

    asyncio.run(check())


def test_what_is_moved_is_counted_under_the_name_of_the_link_that_took_it(
    make_pair: Callable[[], Awaitable[Pair]],
) -> None:
    async def check() -> None:
        sender, receiver = await make_pair()
        done = await collect(receiver, D, 2)
        await agreed(sender, D)
        name = sender.send(D, [b"one"])
        assert sender.send(D, [b"three"]) == name
        await sender.drain(D)
        await asyncio.wait_for(done, 10)
        assert sender.counters[name].sent_bytes == receiver.counters[name].received_bytes == 8
        await sender.close()
        await receiver.close()

    asyncio.run(check())


def test_a_frame_goes_to_the_named_worker_alone(make_pair: Callable[[], Awaitable[Pair]]) -> None:
    async def check() -> None:
        sender, receiver = await make_pair()
        done = await collect(receiver, D, 1)
        await agreed(sender, D)
        sender.send(OTHER, [b"other"])
        sender.send(D, [b"mine"])
        for peer in (OTHER, D):
            await sender.drain(peer)
        assert await asyncio.wait_for(done, 10) == [b"mine"]
        await receiver.close()
        sender.send(D, [b"late"])
        await sender.drain(D)
        await receiver.close()
        await sender.close()
        assert done.result() == [b"mine"]

    asyncio.run(check())


def test_a_frame_over_the_limit_is_refused_at_once(make_pair: Callable[[], Awaitable[Pair]]) -> None:
    async def check() -> None:
        sender, receiver = await make_pair()
        with pytest.raises(PayloadTooLarge):
            sender.send(D, [bytes(sender.max_frame_bytes + 1)])
        await sender.close()
        await receiver.close()

    asyncio.run(check())
