"""What the memory bus and the NATS bus promise alike."""

import asyncio
from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from runtime.bus import Bus
from runtime.errors import PayloadTooLarge
from runtime.memory_bus import MemoryBus, MemoryHub
from runtime.nats_bus import connect_bus


class World(Protocol):
    """Buses that reach each other through one broker."""

    async def bus(self, max_pending: int = 1 << 26) -> Bus: ...

    def stop(self) -> None: ...

    def start(self) -> None: ...


class MemoryWorld:
    def __init__(self) -> None:
        self._hub = MemoryHub()
        self._buses: list[MemoryBus] = []

    async def bus(self, max_pending: int = 1 << 26) -> Bus:
        self._buses.append(MemoryBus(self._hub, max_pending=max_pending))
        return self._buses[-1]

    def stop(self) -> None:
        for bus in self._buses:
            self._hub.cut(bus)

    def start(self) -> None:
        for bus in self._buses:
            self._hub.restore(bus)


class NatsWorld:
    def __init__(self, server: Any) -> None:
        self._server = server

    async def bus(self, max_pending: int = 1 << 26) -> Bus:
        return await connect_bus(self._server.url, name="test", max_pending=max_pending, on_wait=lambda why: None)

    def stop(self) -> None:
        self._server.kill()

    def start(self) -> None:
        self._server.start()


@pytest.fixture(params=["memory", pytest.param("nats", marks=pytest.mark.nats)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "memory":
        yield MemoryWorld()
    else:
        server = request.getfixturevalue("nats_server")
        server.start()
        yield NatsWorld(server)


class Inbox:
    """A handler that keeps what it gets, and can be waited on."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bytes]] = []
        self._changed = asyncio.Event()

    def __call__(self, subject: str, payload: bytes) -> None:
        self.messages.append((subject, payload))
        self._changed.set()

    async def has(self, num_messages: int) -> list[bytes]:
        while len(self.messages) < num_messages:
            self._changed.clear()
            await self._changed.wait()
        return [payload for _, payload in self.messages]


class States:
    """Records the changes of a bus, and can be waited on."""

    def __init__(self, bus: Bus) -> None:
        self.queue: asyncio.Queue[bool] = asyncio.Queue()
        bus.on_state(self.queue.put_nowait)


def test_messages_arrive_in_the_order_in_which_they_were_published(world: World, run: Any) -> None:
    async def main() -> None:
        sender, receiver = await world.bus(), await world.bus()
        inbox = Inbox()
        receiver.subscribe("a.b", inbox)
        await receiver.ready()
        sent = [b"%d" % number for number in range(3000)]
        for payload in sent:
            sender.publish("a.b", payload)
        await sender.drain()
        assert await inbox.has(len(sent)) == sent
        assert sender.counters.published_messages == 3000
        assert receiver.counters.received_messages == 3000
        await sender.close()
        await receiver.close()

    run(main())


def test_a_star_stands_for_exactly_one_part(world: World, run: Any) -> None:
    async def main() -> None:
        bus = await world.bus()
        inbox, everything = Inbox(), Inbox()
        bus.subscribe("w.*.in", inbox)
        bus.subscribe("end", everything)
        for subject in ("w.p1.in", "w.in", "w.a.b.in", "w.p1.out", "w.p2.in", "end"):
            bus.publish(subject, b"")
        await everything.has(1)
        assert [subject for subject, _ in inbox.messages] == ["w.p1.in", "w.p2.in"]
        await bus.close()

    run(main())


def test_a_publisher_hears_itself_and_only_what_came_after_its_subscription(world: World, run: Any) -> None:
    async def main() -> None:
        bus = await world.bus()
        inbox = Inbox()
        bus.publish("x", b"before")
        bus.subscribe("x", inbox)
        bus.publish("x", b"after")
        assert await inbox.has(1) == [b"after"]
        await bus.close()

    run(main())


def test_each_of_two_subscriptions_gets_its_copy(world: World, run: Any) -> None:
    async def main() -> None:
        bus = await world.bus()
        first, second = Inbox(), Inbox()
        bus.subscribe("x.y", first)
        bus.subscribe("x.*", second)
        bus.publish("x.y", b"1")
        assert await first.has(1) == await second.has(1) == [b"1"]
        await bus.close()

    run(main())


def test_a_closed_subscription_hears_nothing_more_and_can_be_closed_again(world: World, run: Any) -> None:
    async def main() -> None:
        bus = await world.bus()
        ended, other = Inbox(), Inbox()
        subscription = bus.subscribe("x", ended)
        bus.subscribe("y", other)
        bus.publish("x", b"on its way when closed")
        subscription.close()
        subscription.close()
        bus.publish("x", b"too late")
        bus.publish("y", b"")
        await other.has(1)
        assert ended.messages == []
        assert subscription.subject == "x"
        await bus.close()

    run(main())


def test_a_handler_may_close_its_own_subscription_and_publish(world: World, run: Any) -> None:
    async def main() -> None:
        bus = await world.bus()
        once, answers = Inbox(), Inbox()

        def handler(subject: str, payload: bytes) -> None:
            once(subject, payload)
            subscription.close()
            bus.publish("answer", payload)

        subscription = bus.subscribe("question", handler)
        bus.subscribe("answer", answers)
        bus.publish("question", b"1")
        bus.publish("question", b"2")
        bus.publish("answer", b"3")
        await answers.has(2)
        assert [payload for _, payload in once.messages] == [b"1"]
        await bus.close()

    run(main())


def test_a_handler_that_raises_is_logged_and_the_next_message_comes(
    world: World, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        bus = await world.bus()
        inbox = Inbox()

        def handler(subject: str, payload: bytes) -> None:
            if payload == b"bad":
                raise RuntimeError("broken on purpose")
            inbox(subject, payload)

        bus.subscribe("some.subject", handler)
        bus.publish("some.subject", b"bad")
        bus.publish("some.subject", b"good")
        assert await inbox.has(1) == [b"good"]
        assert bus.counters.handler_errors == 1
        await bus.close()

    run(main())
    [record] = [each for each in caplog.records if each.getMessage() == "bus_handler_failed"]
    assert record.__dict__["fields"]["subject"] == "some.subject"
    assert record.exc_info


def test_the_longest_payload_passes_and_one_byte_more_is_refused(world: World, run: Any) -> None:
    async def main() -> None:
        bus = await world.bus()
        inbox = Inbox()
        bus.subscribe("x", inbox)
        assert bus.max_payload >= 1 << 16
        bus.publish("x", b"z" * bus.max_payload)
        with pytest.raises(PayloadTooLarge) as caught:
            bus.publish("x", b"z" * (bus.max_payload + 1))
        assert caught.value.limit_bytes == bus.max_payload
        [payload] = await inbox.has(1)
        assert len(payload) == bus.max_payload
        await bus.close()

    run(main())


@pytest.mark.parametrize("subject", ["", ".", "a..b", "a b", "a.*", "a.>", "a\r\nPUB b 0", "ä"])
def test_a_malformed_subject_is_refused_before_it_reaches_the_wire(world: World, run: Any, subject: str) -> None:
    async def main() -> None:
        bus = await world.bus()
        with pytest.raises(ValueError, match="subject"):
            bus.publish(subject, b"")
        if subject != "a.*":
            with pytest.raises(ValueError, match="subject"):
                bus.subscribe(subject, lambda *_: None)
        await bus.close()

    run(main())


def test_what_would_wait_beyond_the_limit_is_dropped_and_counted(world: World, run: Any) -> None:
    async def main() -> None:
        bus = await world.bus(max_pending=1 << 16)
        inbox = Inbox()
        bus.subscribe("x", inbox)
        for number in range(8):
            bus.publish("x", bytes([number]) * (1 << 14))
        await bus.drain()
        bus.publish("x", b"end")
        payloads = await inbox.has(4)
        assert [payload[0] for payload in payloads[:3]] == [0, 1, 2]
        assert payloads[3] == b"end"
        assert bus.counters.dropped_messages == 5
        assert bus.counters.dropped_bytes == 5 << 14
        await bus.close()

    run(main())


def test_subscriptions_survive_the_loss_of_the_server_and_what_waited_is_sent(world: World, run: Any) -> None:
    async def main() -> None:
        sender, receiver = await world.bus(), await world.bus()
        inbox = Inbox()
        receiver.subscribe("x.*", inbox)
        await receiver.ready()
        states, far_states = States(sender), States(receiver)
        world.stop()
        assert not await states.queue.get()
        assert not await far_states.queue.get()
        assert not sender.connected
        late = Inbox()
        receiver.subscribe("late", late)
        sender.publish("x.1", b"queued while away")
        world.start()
        assert await states.queue.get()
        assert await far_states.queue.get()
        assert sender.connected
        await receiver.ready()
        sender.publish("x.2", b"after")
        sender.publish("late", b"after")
        await sender.drain()
        assert (await late.has(1)) == [b"after"]
        while b"after" not in await inbox.has(1):
            await inbox.has(len(inbox.messages) + 1)
        assert inbox.messages[-1] == ("x.2", b"after")
        assert receiver.counters.reconnects == 1
        await sender.close()
        await receiver.close()

    run(main())


def test_publishing_without_a_server_neither_blocks_nor_raises(world: World, run: Any) -> None:
    async def main() -> None:
        bus = await world.bus(max_pending=1 << 20)
        inbox = Inbox()
        bus.subscribe("x", inbox)
        states = States(bus)
        world.stop()
        await states.queue.get()
        for _ in range(64):
            bus.publish("x", b"z" * (1 << 16))
        assert 40 <= bus.counters.dropped_messages <= 52
        world.start()
        await bus.drain()
        await inbox.has(64 - bus.counters.dropped_messages)
        await bus.close()

    run(main())


def test_ready_and_drain_wait_for_the_server_to_come_back(world: World, run: Any) -> None:
    async def main() -> None:
        bus = await world.bus()
        states = States(bus)
        world.stop()
        await states.queue.get()
        bus.publish("x", b"1")
        waiting = [asyncio.create_task(bus.ready()), asyncio.create_task(bus.drain())]
        done, _ = await asyncio.wait(waiting, timeout=0.02)
        assert not done
        world.start()
        await asyncio.gather(*waiting)
        await bus.close()

    run(main())


def test_a_callback_of_state_that_raises_does_not_keep_the_others_from_hearing(world: World, run: Any) -> None:
    async def main() -> None:
        bus = await world.bus()

        def broken(connected: bool) -> None:
            raise RuntimeError("broken on purpose")

        bus.on_state(broken)
        states = States(bus)
        world.stop()
        assert not await states.queue.get()
        world.start()
        assert await states.queue.get()
        await bus.close()

    run(main())


def test_close_hands_over_the_last_words_and_later_ones_are_dropped(world: World, run: Any) -> None:
    async def main() -> None:
        sender, receiver = await world.bus(), await world.bus()
        inbox = Inbox()
        receiver.subscribe("x", inbox)
        await receiver.ready()
        sender.publish("x", b"last words")
        await sender.close()
        await sender.close()
        assert not sender.connected
        sender.publish("x", b"too late")
        await sender.drain()
        await sender.ready()
        assert sender.counters.dropped_messages == 1
        receiver.publish("x", b"end")
        assert await inbox.has(2) == [b"last words", b"end"]
        await receiver.close()

    run(main())


def test_close_without_a_server_does_not_wait_for_one(world: World, run: Any) -> None:
    async def main() -> None:
        bus = await world.bus()
        states = States(bus)
        world.stop()
        await states.queue.get()
        bus.publish("x", b"never sent")
        waiting = asyncio.create_task(bus.drain())
        await asyncio.sleep(0)
        await bus.close()
        await waiting

    run(main())
