"""The faults that a memory hub can be told to make, and that it makes no others."""

import asyncio
from typing import Any

from runtime.memory_bus import MemoryBus, MemoryHub


class Pair:
    """Two buses on one hub, the second of which keeps what it hears."""

    def __init__(self) -> None:
        self.hub = MemoryHub()
        self.sender, self.receiver = MemoryBus(self.hub), MemoryBus(self.hub)
        self.got: list[bytes] = []
        self.receiver.subscribe("x", lambda _, payload: self.got.append(payload))

    async def send(self, *payloads: bytes) -> list[bytes]:
        for payload in payloads:
            self.sender.publish("x", payload)
        await self.sender.drain()
        return self.got


def test_a_filter_loses_doubles_and_damages_messages(run: Any) -> None:
    fates = {b"lost": (), b"doubled": (b"doubled", b"doubled"), b"damaged": (b"damagee",)}

    async def main() -> None:
        pair = Pair()
        pair.hub.filter = lambda subject, payload: fates.get(payload, (payload,))
        got = await pair.send(b"lost", b"doubled", b"damaged", b"fine")
        assert got == [b"doubled", b"doubled", b"damagee", b"fine"]

    run(main())


def test_a_delayed_message_is_overtaken(run: Any) -> None:
    async def main() -> None:
        pair = Pair()
        pair.hub.delay = lambda subject, payload: 0.005 if payload == b"slow" else 0.0
        late = asyncio.Event()
        pair.receiver.subscribe("x", lambda _, payload: payload == b"slow" and late.set())
        await pair.send(b"slow", b"fast")
        await late.wait()
        assert pair.got == [b"fast", b"slow"]

    run(main())


def test_a_message_kept_back_by_a_filter_can_be_injected_later(run: Any) -> None:
    async def main() -> None:
        pair = Pair()
        kept: list[bytes] = []

        def keep_back(subject: str, payload: bytes) -> tuple[bytes, ...]:
            if payload == b"kept":
                kept.append(payload)
                return ()
            return (payload,)

        pair.hub.filter = keep_back
        await pair.send(b"kept", b"sent")
        pair.hub.inject("x", kept.pop())
        assert pair.got == [b"sent", b"kept"]

    run(main())


def test_what_is_sent_to_a_bus_that_is_cut_off_is_lost_and_what_it_sends_waits(run: Any) -> None:
    async def main() -> None:
        pair = Pair()
        heard: list[bytes] = []
        pair.sender.subscribe("back", lambda _, payload: heard.append(payload))
        pair.hub.cut(pair.receiver)
        pair.receiver.publish("back", b"waits")
        assert await pair.send(b"lost") == []
        assert heard == []
        pair.hub.restore(pair.receiver)
        await pair.receiver.drain()
        assert await pair.send(b"heard") == [b"heard"]
        assert heard == [b"waits"]

    run(main())


def test_a_handler_never_runs_inside_publish(run: Any) -> None:
    async def main() -> None:
        pair = Pair()
        pair.sender.publish("x", b"1")
        assert pair.got == []
        await pair.sender.drain()
        assert pair.got == [b"1"]

    run(main())


def test_a_flood_leaves_the_loop_its_turns(run: Any) -> None:
    async def main() -> None:
        pair = Pair()
        for _ in range(2000):
            pair.sender.publish("x", b"")
        await asyncio.sleep(0)
        assert 0 < len(pair.got) < 2000
        await pair.sender.drain()
        assert len(pair.got) == 2000

    run(main())
