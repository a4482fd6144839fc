"""Shared memory between two workers: when it is taken, what happens when one end stops, dies, lies or damages."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvtransfer import packets
from kvtransfer.auto_link import AutoLink
from kvtransfer.choose_link import LinkError, choose_link
from kvtransfer.link import BusLink
from kvtransfer.meeting import Meeting
from kvtransfer.segment import NUMBER_BYTES, Place, SegmentReader
from kvtransfer.shm_link import ShmLink
from kvtransfer.shm_sender import FULL, NOT_SHARED, UNPROVEN
from protocol.messages import Peer
from runtime.memory_bus import MemoryBus, MemoryHub
from runtime.postbox import Postbox
from runtime.worker_settings import WorkerSettings
from tests.support.stack import run, until

P, D, D2 = Peer("prefill-1", "1"), Peer("decode-1", "1"), Peer("decode-2", "1")
SEGMENT_BYTES = 1 << 20
FRAME = bytes(range(256)) * 400
"""100 KiB: a segment holds ten, one receiver five."""


class Rig:
    """A sending worker, and receiving ones, each with both links."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hub = MemoryHub()
        self.shm = ShmLink(folder, P, SEGMENT_BYTES)
        self.sender = AutoLink(self.shm, BusLink(MemoryBus(self.hub)))
        self.frames: dict[Peer, list[bytes]] = {}
        self._open: list[AutoLink] = [self.sender]

    @property
    def held_bytes(self) -> int:
        return self.shm._sender._segment.held_bytes

    async def receiver(self, me: Peer, folder: Path | None = None) -> AutoLink:
        link = AutoLink(ShmLink(folder or self.folder, me, SEGMENT_BYTES), BusLink(MemoryBus(self.hub)))
        frames = self.frames[me] = []
        await link.receive(me, lambda frame: frames.append(bytes(frame)))
        self._open.append(link)
        return link

    async def agreed(self, *peers: Peer) -> None:
        for peer in peers:
            self.sender.offer(peer)
        await until(lambda: {peer.id for peer in peers} <= set(self.sender.sharing))

    async def send(self, to: Peer, frame: bytes = FRAME) -> str:
        """Send one frame; returns the name of the link that took it."""
        name = self.sender.send(to, [frame])
        await self.sender.drain(to)
        return name

    async def arrived(self, at: Peer, count: int) -> None:
        await until(lambda: len(self.frames[at]) == count)

    async def close(self) -> None:
        for link in self._open:
            await link.close()
        assert not list(self.folder.glob("*"))


class FakeReceiver:
    """Answers as its test wants."""

    def __init__(self, folder: Path, me: Peer) -> None:
        self._meeting = Meeting(folder)
        self._me = me
        self._listener = self._meeting.listen(me)
        self.connection: socket.socket | None = None
        self.reader: SegmentReader | None = None

    async def greet(self, proof: bytes | None = None) -> None:
        """Take the sender's hello, and answer with a proof: the right one unless told otherwise."""
        loop = asyncio.get_running_loop()
        packet = b""
        while not packet:  # whoever begins to listen looks whether the others live
            if self.connection is not None:
                self.connection.close()
            connection, _ = await loop.sock_accept(self._listener)
            self.connection = connection
            packet, fds, _, _ = socket.recv_fds(connection, packets.MAX_PACKET_BYTES, 1)
        assert packets.read_hello(packet) == P
        self.reader = SegmentReader(fds[0])
        connection.send(packets.PROOF + (self.reader.proof() if proof is None else proof))
        connection.setblocking(False)

    def told(self) -> list[Place]:
        """What it has been told of, and hasn't looked at so far."""
        assert self.connection is not None
        places: list[Place] = []
        while True:
            try:
                packet = self.connection.recv(packets.MAX_PACKET_BYTES)
            except BlockingIOError:
                return places
            if not packet:
                return places
            places += packets.read_told(packet)

    def read(self, place: Place) -> bytes | None:
        assert self.reader is not None
        into = memoryview(bytearray(NUMBER_BYTES + place.num_bytes))
        return bytes(into[NUMBER_BYTES:]) if self.reader.read(place, into) else None

    def die(self) -> None:
        self._listener.close()
        if self.connection is not None:
            self.connection.close()
        if self.reader is not None:
            self.reader.close()
        self._meeting.leave(self._me)
        self._meeting.close()


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_a_worker_that_is_not_on_this_host_gets_frames_by_the_bus_from_the_first(tmp_path: Path) -> None:
    async def check() -> None:
        rig = Rig(tmp_path / "here")
        elsewhere = tmp_path / "there"
        await rig.receiver(D, elsewhere)
        rig.sender.offer(D)
        assert await rig.send(D) == "nats"
        await rig.arrived(D, 1)
        assert rig.sender.fallbacks == {NOT_SHARED: 1, UNPROVEN: 0, FULL: 0}
        await rig.close()

    run(check)


def test_until_a_receiver_has_proved_that_it_reads_this_memory_frames_go_by_the_bus(tmp_path: Path) -> None:
    async def check() -> None:
        rig = Rig(tmp_path)
        stopped = FakeReceiver(tmp_path, D)
        rig.sender.offer(D)
        assert await rig.send(D) == "nats"
        assert rig.sender.fallbacks[UNPROVEN] == 1
        await stopped.greet()
        await until(lambda: rig.sender.sharing == [D.id])
        assert await rig.send(D) == "shm"
        stopped.die()
        await rig.close()

    run(check)


def test_a_receiver_that_reads_another_number_gets_no_memory(tmp_path: Path) -> None:
    async def check() -> None:
        rig = Rig(tmp_path)
        liar = FakeReceiver(tmp_path, D)
        rig.sender.offer(D)
        await liar.greet(proof=bytes(16))
        await until(lambda: D not in rig.shm._sender._lines)
        assert await rig.send(D) == "nats"
        assert rig.sender.sharing == []
        liar.die()
        await rig.close()

    run(check)


def test_many_times_the_segment_arrives_in_order_and_leaves_nothing_held(tmp_path: Path) -> None:
    async def check() -> None:
        rig = Rig(tmp_path)
        await rig.receiver(D)
        await rig.agreed(D)
        sent = [os.urandom(20_000 + 1_700 * (number % 11)) for number in range(150)]
        for number, frame in enumerate(sent, 1):
            assert await rig.send(D, frame) == "shm"
            await rig.arrived(D, number)
        assert rig.frames[D] == sent
        await until(lambda: rig.held_bytes == 0)
        await rig.close()

    run(check)


def test_a_receiver_that_stops_fills_its_share_alone_and_the_rest_goes_by_the_bus(tmp_path: Path) -> None:
    async def check() -> None:
        rig = Rig(tmp_path)
        stopped = FakeReceiver(tmp_path, D)
        await rig.receiver(D2)
        rig.sender.offer(D)
        await stopped.greet()
        await rig.agreed(D, D2)
        assert [await rig.send(D) for _ in range(8)] == ["shm"] * 5 + ["nats"] * 3
        assert rig.sender.fallbacks[FULL] == 3
        for number in range(1, 20):
            assert await rig.send(D2) == "shm"
            await rig.arrived(D2, number)
        rig.sender.lost(D)
        await until(lambda: rig.held_bytes == 0)
        stopped.die()
        await rig.close()

    run(check)


def test_a_receiver_that_wakes_up_after_it_was_given_up_reads_nothing(tmp_path: Path) -> None:
    async def check() -> None:
        rig = Rig(tmp_path)
        stopped = FakeReceiver(tmp_path, D)
        rig.sender.offer(D)
        await stopped.greet()
        await rig.receiver(D2)
        await rig.agreed(D, D2)
        for _ in range(3):
            assert await rig.send(D) == "shm"
        rig.sender.lost(D)
        assert await rig.send(D2, FRAME[::-1]) == "shm"
        places = stopped.told()
        assert len(places) == 3
        assert [stopped.read(place) for place in places] == [None] * 3
        stopped.die()
        await rig.close()

    run(check)


def test_a_receivers_death_frees_what_it_held_at_once_and_its_next_life_shares_again(tmp_path: Path) -> None:
    async def check() -> None:
        rig = Rig(tmp_path)
        first = FakeReceiver(tmp_path, D)
        rig.sender.offer(D)
        await first.greet()
        await rig.agreed(D)
        assert await rig.send(D) == "shm"
        assert rig.held_bytes > 0
        first.die()
        await until(lambda: rig.held_bytes == 0)
        assert await rig.send(D) == "nats"
        again = Peer(D.id, "2")
        await rig.receiver(again)
        await rig.agreed(again)
        assert await rig.send(again) == "shm"
        await rig.arrived(again, 1)
        await rig.close()

    run(check)


def test_a_senders_death_is_noticed_and_its_next_life_shares_again(tmp_path: Path) -> None:
    async def check() -> None:
        rig = Rig(tmp_path)
        receiver = await rig.receiver(D)
        await rig.agreed(D)
        assert receiver.sharing == [P.id]
        rig.sender.send(D, [FRAME])  # laid down, and never told of
        await rig.sender.close()
        await until(lambda: receiver.sharing == [])
        next_life = ShmLink(tmp_path, Peer(P.id, "2"), SEGMENT_BYTES)
        next_life.offer(D)
        await until(lambda: next_life.sharing == [D.id])
        next_life.send(D, [b"after"])
        await next_life.drain(D)
        await rig.arrived(D, 1)
        assert rig.frames[D] == [b"after"]
        await next_life.close()
        await rig.close()

    run(check)


def test_without_a_broker_frames_go_on_by_shared_memory(tmp_path: Path) -> None:
    async def check() -> None:
        rig = Rig(tmp_path)
        await rig.receiver(D)
        await rig.agreed(D)
        bus = rig.sender._otherwise.bus
        assert isinstance(bus, MemoryBus)
        rig.hub.cut(bus)
        async with asyncio.timeout(5):
            assert [await rig.send(D) for _ in range(3)] == ["shm"] * 3
        await rig.arrived(D, 3)
        rig.hub.restore(bus)
        await rig.close()

    run(check)


def test_memory_that_cant_be_written_is_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        rig = Rig(tmp_path)
        await rig.receiver(D)
        await rig.agreed(D)

        def full(*_: Any) -> int:
            raise OSError("no space")

        with monkeypatch.context() as patched:
            patched.setattr(os, "pwritev", full)
            assert await rig.send(D) == "nats"
        assert await rig.send(D) == "shm"
        await rig.arrived(D, 2)
        await rig.close()

    run(check)


def test_a_handler_that_fails_costs_its_frame_alone(tmp_path: Path) -> None:
    async def check() -> None:
        rig = Rig(tmp_path)
        receiver = ShmLink(tmp_path, D, SEGMENT_BYTES)
        taken: list[int] = []

        def handler(frame: memoryview) -> None:
            taken.append(len(frame))
            if len(taken) == 1:
                raise ValueError("not this one")

        await receiver.receive(D, handler)
        await rig.agreed(D)
        for size in (10, 20):
            await rig.send(D, bytes(size))
        await until(lambda: taken == [10, 20] and rig.held_bytes == 0)
        await receiver.close()
        await rig.close()

    run(check)


@pytest.mark.parametrize(
    "packet",
    [b"", b"?", packets.HELLO, packets.HELLO + b"\xff", packets.PROOF + bytes(16), packets.told([]), bytes(1000)],
)
def test_who_greets_wrongly_is_let_go_and_others_are_served(tmp_path: Path, packet: bytes) -> None:
    async def check() -> None:
        rig = Rig(tmp_path)
        await rig.receiver(D)
        meeting = Meeting(tmp_path)
        stranger = meeting.connect(D)
        assert stranger is not None
        if packet:
            stranger.send(packet)
        else:
            stranger.shutdown(socket.SHUT_WR)
        assert await asyncio.get_running_loop().sock_recv(stranger, 100) == b""
        stranger.close()
        meeting.close()
        await rig.agreed(D)
        assert await rig.send(D) == "shm"
        await rig.arrived(D, 1)
        await rig.close()

    run(check)


def test_a_descriptor_that_cant_be_read_is_let_go(tmp_path: Path) -> None:
    async def check() -> None:
        rig = Rig(tmp_path)
        receiver = await rig.receiver(D)
        meeting = Meeting(tmp_path)
        stranger = meeting.connect(D)
        assert stranger is not None
        ends = os.pipe()
        socket.send_fds(stranger, [packets.hello(P)], [ends[0]])
        assert await asyncio.get_running_loop().sock_recv(stranger, 100) == b""
        assert receiver.sharing == []
        for end in ends:
            os.close(end)
        stranger.close()
        meeting.close()
        await rig.close()

    run(check)


@pytest.mark.parametrize(
    "packet",
    [
        packets.told([Place(1, 0, 1 << 31)]),
        packets.told([Place(1, (1 << 63) - 1, 100)]),
        packets.told([Place(7, 64, 100)]),
        packets.TOLD + bytes(7),
        b"?" * 1024,
    ],
)
def test_a_sender_that_tells_nonsense_is_handed_nothing(tmp_path: Path, packet: bytes) -> None:
    async def check() -> None:
        rig = Rig(tmp_path)
        await rig.receiver(D)
        meeting = Meeting(tmp_path)
        liar = meeting.connect(D)
        assert liar is not None
        memory = os.memfd_create("liar")
        os.ftruncate(memory, 4096)
        socket.send_fds(liar, [packets.hello(P)], [memory])
        os.close(memory)
        loop = asyncio.get_running_loop()
        assert (await loop.sock_recv(liar, 100))[:2] == packets.PROOF
        liar.send(packet)
        answer = await loop.sock_recv(liar, 100)
        assert answer in (b"", packets.done(1))
        assert rig.frames[D] == []
        liar.close()
        meeting.close()
        await rig.close()

    run(check)


@pytest.mark.parametrize("answer", [packets.done(3), packets.DONE + bytes(3), b"?", packets.PROOF + bytes(3)])
def test_a_receiver_that_answers_nonsense_is_given_up(tmp_path: Path, answer: bytes) -> None:
    async def check() -> None:
        rig = Rig(tmp_path)
        liar = FakeReceiver(tmp_path, D)
        rig.sender.offer(D)
        await liar.greet()
        await rig.agreed(D)
        assert await rig.send(D) == "shm"
        assert liar.connection is not None
        liar.connection.send(answer)
        await until(lambda: rig.sender.sharing == [])
        assert rig.held_bytes == 0
        assert await rig.send(D) == "nats"
        liar.die()
        await rig.close()

    run(check)


def test_what_goes_by_the_bus_is_waited_for_by_each_who_sent_it(tmp_path: Path) -> None:
    async def check() -> None:
        rig = Rig(tmp_path)
        bus = rig.sender._otherwise.bus
        assert isinstance(bus, MemoryBus)
        rig.hub.cut(bus)
        sends = [asyncio.create_task(rig.send(D)) for _ in range(2)]
        done, waiting = await asyncio.wait(sends, timeout=0.05)
        assert (len(done), len(waiting)) == (0, 2)
        rig.hub.restore(bus)
        assert await asyncio.gather(*sends) == ["nats", "nats"]
        await rig.close()

    run(check)


def test_a_descriptor_that_was_sent_is_not_handed_to_child_processes(tmp_path: Path) -> None:
    async def check() -> None:
        rig = Rig(tmp_path)
        receiver = await rig.receiver(D)
        await rig.agreed(D)
        shared = receiver._direct._receiver
        assert shared is not None
        assert not any(os.get_inheritable(line._reader._fd) for line in shared._lines)
        await rig.close()

    run(check)


def test_without_memory_to_share_nothing_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> int:
        raise OSError("no memory")

    monkeypatch.setattr(os, "memfd_create", none)
    with pytest.raises(OSError, match="no memory"):
        ShmLink(tmp_path, P, SEGMENT_BYTES)


def postbox(bus: MemoryBus) -> Postbox:
    return Postbox(bus, P)


def settings(**more: Any) -> WorkerSettings:
    return WorkerSettings(model="toy", **more)


def test_the_setting_chooses_the_link(tmp_path: Path) -> None:
    async def check() -> None:
        bus = MemoryBus(MemoryHub())
        assert choose_link(settings(), postbox(bus), bus).name == "nats"
        assert choose_link(settings(kv_link="nats", shm_dir=str(tmp_path)), postbox(bus), bus).name == "nats"
        for kind, folder in (("auto", tmp_path), ("shm", tmp_path)):
            link = choose_link(settings(kv_link=kind, shm_dir=str(folder)), postbox(bus), bus)
            assert link.name == kind
            await link.close()
        await bus.close()

    run(check)


def test_a_directory_that_cant_be_used_leaves_the_bus_unless_memory_was_asked_for(tmp_path: Path) -> None:
    async def check() -> None:
        bus = MemoryBus(MemoryHub())
        (tmp_path / "file").touch()
        unusable = str(tmp_path / "file" / "link")
        link = choose_link(settings(shm_dir=unusable), postbox(bus), bus)
        assert link.name == "nats"
        link.send(D, [b"frame"])
        assert link.fallbacks == {"unusable": 1}
        for folder in ("", unusable):
            with pytest.raises(LinkError, match=r"shm|no memory can be shared"):
                choose_link(settings(kv_link="shm", shm_dir=folder), postbox(bus), bus)
        await bus.close()

    run(check)
