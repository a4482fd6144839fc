"""Whatever comes on an inbox: it is counted, said once a second, kept within bounds, and the service goes on."""

import asyncio
import random
from typing import Any

import msgpack
import pytest

from kvferry.brokers import Broker
from protocol import subjects
from protocol.codec import decode, encode
from protocol.errors import WireError
from protocol.messages import Cancel, Envelope, Part, Peer
from runtime import postbox as postboxes
from runtime.identity import new_peer
from runtime.logs import get_logger
from runtime.memory_bus import MemoryBus, MemoryHub
from runtime.nats_bus import connect_bus
from runtime.postbox import Postbox
from tests.support.bus_line import Line

ME = "decode-1"
INBOX = subjects.inbox(ME, "gateway")
GATEWAY = Peer("gateway-1", "1")
HONEST = encode(Envelope(GATEWAY, ""), Cancel("req-1", 1, "asked"))


class Victim:
    """A postbox that counts the cancels that reach it."""

    def __init__(self) -> None:
        """Inside a running loop."""
        hub = MemoryHub()
        self.attacker = MemoryBus(hub)
        self.box = Postbox(MemoryBus(hub), new_peer(ME))
        self.heard: list[Peer] = []
        self.arrived = asyncio.Event()
        self.box.on(Cancel, self._hear)

    def _hear(self, sender: Peer, _: Cancel) -> None:
        self.heard.append(sender)
        self.arrived.set()

    async def attack(self, *frames: bytes) -> None:
        """All these, then an honest one, which must arrive."""
        await self.box.open()
        for frame in (*frames, HONEST):
            self.attacker.publish(INBOX, frame)
        await self.arrived.wait()
        self.box.close()


@pytest.fixture(autouse=True)
def fresh_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postboxes, "log", get_logger("postbox"))


def garbage(number: int) -> list[bytes]:
    """Random bytes, honest frames that were cut or changed, and msgpack of any shape; the same each time."""
    dice = random.Random(number)
    changed = bytearray(HONEST)
    for _ in range(dice.randint(1, 4)):
        changed[dice.randrange(1, len(changed))] = dice.randrange(256)
    values: list[Any] = [None, -1, 1 << 63, 0.5, b"x", "x", [], [[[]]], {"a": 1}, [1] * 9]
    shape = [dice.choice(values) for _ in range(dice.randint(0, 9))]
    frames = [dice.randbytes(dice.randint(0, 60)), HONEST[: dice.randrange(len(HONEST))], bytes(changed)]
    return [*frames, HONEST[:1] + msgpack.packb([dice.randint(0, 40), *shape])]


def test_reading_a_frame_fails_in_one_way_alone() -> None:
    for number in range(3000):
        for frame in garbage(number):
            try:
                decode(frame)
            except WireError:
                continue


@pytest.mark.parametrize(
    "bomb",
    [
        HONEST[:1] + b"\x91" * 5000,  # nested lists
        HONEST[:1] + b"\xdd\xff\xff\xff\xff",  # a list of four billion, said to come
        HONEST[:1] + b"\xc6\xff\xff\xff\xff",  # bytes, likewise
        HONEST[:1] + b"\x81\x91\x01\x01",  # a map with a list for a key
        HONEST[:1] + b"\xd6\xff\x00\x00\x00\x00",  # a time
    ],
)
def test_a_frame_that_promises_more_than_there_is_costs_nothing(bomb: bytes) -> None:
    with pytest.raises(WireError):
        decode(bomb)


def test_a_flood_of_garbage_is_counted_and_said_once(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        victim = Victim()
        frames = [frame for number in range(500) for frame in garbage(number)[:2]]
        await victim.attack(*frames)
        assert victim.box.num_refused == 1000

    run(main())
    assert [record.getMessage() for record in caplog.records].count("frame_refused") == 1


def test_what_is_said_of_a_frame_repeats_little_of_it(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    shape: list[Any] = ["x" * 100_000, "a", "b", "c"]

    async def main() -> None:
        await Victim().attack(HONEST[:1] + msgpack.packb(shape))

    run(main())
    (record,) = caplog.records
    assert len(str(vars(record)["fields"])) < 500


def test_names_that_were_made_up_are_forgotten_again(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postboxes, "MAX_PEERS", 8)

    async def main() -> None:
        victim = Victim()
        made_up = [Peer(f"gateway-{number}", "9") for number in range(100)]
        too_long = [Peer("gateway-" + "x" * 1000, "9"), Peer("gateway-1", "9" * 1000), Peer("gateway-a.b", "9")]
        await victim.attack(*(encode(Envelope(peer, ""), Cancel("r", 1, "")) for peer in (*made_up, *too_long)))
        assert victim.box.num_refused == len(too_long)
        assert len(victim.box._epochs) <= 8

    run(main())


def test_a_frame_in_parts_cant_change_its_sender_on_the_way(run: Any) -> None:
    inner = encode(Envelope(Peer("gateway-7", "1"), ""), Cancel("req-1", 1, "forged"))
    bodies = inner[:9], inner[9:]
    parts = [encode(Envelope(GATEWAY, ""), Part("f", index, 2, body)) for index, body in enumerate(bodies)]

    async def main() -> None:
        victim = Victim()
        await victim.attack(*parts)
        assert victim.heard == [GATEWAY]
        assert victim.box.num_refused == 1

    run(main())


@pytest.mark.nats
def test_a_worker_on_a_real_bus_outlives_a_flood(bus: Broker, run: Any) -> None:
    async def main() -> None:
        mine = await connect_bus(bus.urls["decode"], name=ME, on_wait=pytest.fail)
        box = Postbox(mine, new_peer(ME))
        arrived = asyncio.Event()
        box.on(Cancel, lambda sender, message: arrived.set())
        await box.open()
        with Line(bus.urls["gateway"]) as attacker:
            for number in range(200):
                for frame in garbage(number)[:2]:
                    attacker.publish(INBOX, frame)
            attacker.publish(INBOX, b"\xff" * (1 << 20))
            await asyncio.to_thread(attacker.answer)
            attacker.publish(INBOX, HONEST)
            await arrived.wait()
        assert box.num_refused == 401
        assert mine.counters.handler_errors == 0
        assert mine.counters.reconnects == 0
        box.close()
        await mine.close()

    run(main())
