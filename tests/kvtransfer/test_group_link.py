"""Process groups of two: made by messages, refused with a reason, ended by whatever goes wrong, made anew."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch

from kvtransfer import group_line, group_sender, pair_group
from kvtransfer.auto_link import AutoLink
from kvtransfer.choose_link import LinkError, choose_link
from kvtransfer.group_link import GroupLink
from kvtransfer.group_sender import GROUP_FULL, NOT_JOINED
from kvtransfer.group_store import MAX_KEYS, MAX_VALUE_BYTES, BusStore, StoreError
from kvtransfer.pair_group import Gloo, GlooGroup, GroupError, PairGroup
from protocol.messages import GroupEnded, GroupOffer, GroupTold, GroupWord, Message, Peer
from runtime.memory_bus import MemoryBus, MemoryHub
from runtime.nats_bus import connect_bus
from runtime.postbox import Postbox
from runtime.worker_settings import WorkerSettings
from tests.support.stack import run, until

P, D, D2 = Peer("prefill-1", "1"), Peer("decode-1", "1"), Peer("decode-1", "2")
NAME = "0123456789abcdef"
LOCAL = Gloo("127.0.0.1")

NATS_RECEIVER = """
import asyncio, sys
from kvtransfer.group_link import GroupLink
from kvtransfer.pair_group import Gloo
from protocol.messages import Peer
from runtime.nats_bus import connect_bus
from runtime.postbox import Postbox

async def main():
    bus = await connect_bus(sys.argv[1], name="decode", on_wait=print)
    me = Peer("decode-1", sys.argv[2])
    box = Postbox(bus, me)
    link = GroupLink(box, "gloo", Gloo("127.0.0.1"))
    await link.receive(me, lambda frame: print(len(frame), frame[0], flush=True))
    await box.open()
    await bus.ready()
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class Rig:
    """A sender at P and whatever else is on its hub."""

    def __init__(self) -> None:
        self.hub = MemoryHub()
        self.heard: list[tuple[Peer, Message]] = []
        self.links: list[GroupLink] = []

    async def box(self, me: Peer) -> Postbox:
        box = Postbox(MemoryBus(self.hub), me)
        await box.open()
        return box

    async def link(self, me: Peer, **given: Any) -> GroupLink:
        link = GroupLink(await self.box(me), **{"backend": "gloo", "make": LOCAL, **given})
        self.links.append(link)
        return link

    async def receiver(self, me: Peer, frames: list[bytes], **given: Any) -> GroupLink:
        link = await self.link(me, **given)
        await link.receive(me, lambda frame: frames.append(bytes(frame)))
        return link

    async def actor(self, me: Peer) -> Postbox:
        """A peer whose words are the test's; what it is told is in ``heard``."""
        box = await self.box(me)
        for kind in (GroupOffer, GroupWord, GroupEnded, GroupTold):
            box.on(kind, lambda sender, message: self.heard.append((sender, message)))
        return box

    def told(self, kind: type) -> list[Any]:
        return [message for _, message in self.heard if isinstance(message, kind)]

    async def close(self) -> None:
        for link in self.links:
            await link.close()


def with_rig(check: Callable[[Rig], Awaitable[None]]) -> None:
    async def body() -> None:
        rig = Rig()
        await check(rig)
        await rig.close()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("group-")]

    run(body)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"backend": "nccl"}, "this worker's groups are of nccl"),
        ({"device": "GPU-1"}, "both workers are on one GPU"),
    ],
)
def test_a_receiver_that_cant_join_says_why_at_once(
    given: dict[str, str], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def check(rig: Rig) -> None:
        sender = await rig.link(P, device="GPU-1")
        await rig.receiver(D, [], **given)
        sender.offer(D)
        await until(lambda: not sender._groups_out.lines)
        assert sender._groups_out._not_before[D] - asyncio.get_running_loop().time() > group_sender.REJOIN_S
        assert [vars(record)["fields"]["reason"] for record in caplog.records] == [reason]

    with_rig(check)


def test_a_worker_that_receives_nothing_refuses() -> None:
    async def check(rig: Rig) -> None:
        await rig.link(D)
        box = await rig.actor(P)
        box.send(D, GroupOffer(NAME, "gloo", ""))
        await until(lambda: rig.told(GroupEnded) == [GroupEnded(NAME, "this worker receives nothing")])

    with_rig(check)


def test_there_is_a_limit_to_senders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_line, "MAX_LINES", 1)
    monkeypatch.setattr(group_line, "JOIN_S", 0.3)

    async def check(rig: Rig) -> None:
        await rig.receiver(D, [])
        first, second = await rig.actor(P), await rig.actor(Peer("prefill-2", "1"))
        first.send(D, GroupOffer(NAME, "gloo", ""))
        second.send(D, GroupOffer("b" * 16, "gloo", ""))
        await until(lambda: GroupEnded("b" * 16, "there are 1 groups already") in rig.told(GroupEnded))

    with_rig(check)


def test_a_receiver_that_never_answers_costs_a_wait_and_then_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_line, "JOIN_S", 0.2)

    async def check(rig: Rig) -> None:
        sender = await rig.link(P)
        await rig.actor(D)
        sender.offer(D)
        sender.send(D, [b"lost"])
        assert sender.fallbacks[NOT_JOINED] == 1
        await until(lambda: not sender._groups_out.lines)
        sender.offer(D)
        await asyncio.sleep(0)
        assert len(rig.told(GroupOffer)) == 1, "not again so soon"

    with_rig(check)


def test_a_link_closes_while_it_waits_for_the_other_end() -> None:
    async def check(rig: Rig) -> None:
        sender = await rig.link(P)
        await rig.actor(D)
        sender.offer(D)
        await until(lambda: bool(rig.told(GroupWord)))

    with_rig(check)


@pytest.mark.parametrize(
    ("sizes", "first", "reason"),
    [
        ((5,), 3, "frame 3 was told, 0 was next"),
        ((2 << 20,), 0, "a frame has over 1048576 bytes"),
        ((-1,), 0, "a frame has over 1048576 bytes"),
        ((1,) * 65537, 0, "over 65536 frames were told"),
    ],
)
def test_what_cant_be_received_ends_the_group_and_the_sender_hears_it(
    sizes: tuple[int, ...], first: int, reason: str
) -> None:
    async def check(rig: Rig) -> None:
        receiver = await rig.receiver(D, [])
        box = await rig.actor(P)
        box.send(D, GroupOffer(NAME, "gloo", ""))
        await until(lambda: bool(receiver._groups_in.lines))  # type: ignore[union-attr]
        box.send(D, GroupTold(NAME, first, sizes))
        await until(lambda: rig.told(GroupEnded) == [GroupEnded(NAME, reason)])
        assert receiver.sharing == []

    with_rig(check)


def test_words_of_another_group_change_nothing() -> None:
    async def check(rig: Rig) -> None:
        frames: list[bytes] = []
        sender, _ = await rig.link(P), await rig.receiver(D, frames)
        stranger = await rig.actor(Peer("prefill-2", "1"))
        sender.offer(D)
        await until(lambda: sender.sharing == [D.id])
        (line,) = sender._groups_out.lines.values()
        group = line.line.group
        for message in (GroupTold(group, 0, (1,)), GroupWord(group, "0/0", b"x"), GroupEnded(group, "no")):
            stranger.send(D, message)
            stranger.send(P, message)
        await until(lambda: [m.group for m in rig.told(GroupEnded)] == [group], 5)
        sender.send(D, [b"frame"])
        await sender.drain(D)
        await until(lambda: frames == [b"frame"])

    with_rig(check)


def test_a_receiver_that_takes_nothing_fills_its_senders_room_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    real = GlooGroup.send

    def wait(group: GlooGroup, frame: bytearray, num_bytes: int) -> None:
        if num_bytes == 1:
            go_on.wait(10)
        real(group, frame, num_bytes)

    async def check(rig: Rig) -> None:
        frames: list[bytes] = []
        sender, _ = await rig.link(P), await rig.receiver(D, frames)
        sender.offer(D)
        await until(lambda: sender.sharing == [D.id])
        monkeypatch.setattr(GlooGroup, "send", wait)
        monkeypatch.setattr(group_sender, "MAX_HELD_BYTES", 20)
        for _ in range(23):
            sender.send(D, [b"1"])
        assert sender.fallbacks[GROUP_FULL] == 3
        draining = asyncio.ensure_future(sender.drain(D))
        await asyncio.sleep(0.05)
        assert not draining.done(), "it waits for room"
        go_on.set()
        await draining
        await until(lambda: len(frames) == 20)
        await until(lambda: sender.try_send(D, [b"2"], 1))

    with_rig(check)


def test_a_handler_that_fails_costs_its_frame_alone() -> None:
    async def check(rig: Rig) -> None:
        frames: list[bytes] = []

        def handler(frame: memoryview) -> None:
            if frame == b"bad":
                raise ValueError("bad")
            frames.append(bytes(frame))

        sender, receiver = await rig.link(P), await rig.link(D)
        await receiver.receive(D, handler)
        sender.offer(D)
        await until(lambda: sender.sharing == [D.id])
        for frame in (b"bad", b"good"):
            sender.send(D, [frame])
        await sender.drain(D)
        await until(lambda: frames == [b"good"])

    with_rig(check)


def test_ranks_of_different_groups_that_meet_part_again(caplog: pytest.LogCaptureFixture) -> None:
    class Mirror:
        """Whatever it is sent, with another name."""

        def send(self, frame: bytearray, num_bytes: int) -> None:
            pass

        def receive(self, into: bytearray, num_bytes: int) -> None:
            into[:num_bytes] = b"x" * num_bytes

    def make(store: object, rank: int) -> PairGroup:
        return Mirror()

    async def check(rig: Rig) -> None:
        sender, _ = await rig.link(P, make=make), await rig.receiver(D, [], make=make)
        sender.offer(D)
        await until(lambda: not sender._groups_out.lines)
        reasons = [vars(record)["fields"].get("reason") for record in caplog.records]
        assert "the other rank is of another group" in reasons

    with_rig(check)


def test_a_store_gives_what_either_rank_sets_and_takes_no_more_than_it_needs() -> None:
    told: list[tuple[str, bytes]] = []
    store = BusStore(lambda key, value: told.append((key, value)), 0.05)
    store.set("mine", b"1")
    store.hear("theirs", b"2")
    assert (store.get("mine"), store.get("theirs"), told) == (b"1", b"2", [("mine", b"1")])
    assert store.check(["mine", "theirs"])
    assert not store.check(["mine", "nobody's"])
    with pytest.raises(StoreError, match="didn't join in time"):
        store.wait(["nobody's"], timedelta(seconds=0.01))
    with pytest.raises(StoreError, match="bytes"):
        store.hear("long", bytes(MAX_VALUE_BYTES + 1))
    for number in range(MAX_KEYS - 1):
        store.hear(str(number), b"")
    with pytest.raises(StoreError, match="there already"):
        store.hear("one more", b"")
    with pytest.raises(StoreError, match="a key of 257"):
        BusStore(lambda key, value: None, 0.05).hear("k" * 257, b"")


def test_after_joining_a_store_says_and_hears_nothing_and_once_it_is_over_takes_nothing() -> None:
    told: list[str] = []
    store = BusStore(lambda key, value: told.append(key), 0.05)
    store.hear("mine", b"theirs")
    store.set("mine", b"mine")
    assert store.get("mine") == b"mine", "the other rank's word doesn't stand in for this one's"
    store.seal()
    store.set("exception_dump", b"1")
    store.hear("exception_dump_of_theirs", b"1")
    assert told == ["mine"]
    assert not store.check(["exception_dump_of_theirs"])
    store.give_up("over")
    with pytest.raises(StoreError, match="over"):
        store.set("more", b"")


def test_an_address_that_isnt_ours_is_an_error() -> None:
    with pytest.raises(GroupError):
        Gloo("no-such-host.invalid")(BusStore(lambda key, value: None, 0.1), 0)


def test_the_setting_chooses_groups_or_says_what_they_need() -> None:
    async def check() -> None:
        bus = MemoryBus(MemoryHub())
        link = choose_link(WorkerSettings(model="toy", kv_link="gloo"), Postbox(bus, P), bus)
        assert isinstance(link, AutoLink)
        assert list(link.counters) == ["gloo", "nats"]
        if not torch.cuda.is_available():
            with pytest.raises(LinkError, match="needs a CUDA device"):
                choose_link(WorkerSettings(model="toy", kv_link="nccl"), Postbox(bus, P), bus)
        await bus.close()

    run(check)


@pytest.fixture
def children(nats_url: str) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    running: list[subprocess.Popen[str]] = []

    def start(epoch: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", NATS_RECEIVER, nats_url, epoch]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        running.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    yield start
    for child in running:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


@pytest.mark.nats
def test_a_killed_process_ends_its_group_and_the_next_life_gets_one_of_its_own(
    nats_url: str, children: Callable[[str], subprocess.Popen[str]]
) -> None:
    async def said(child: subprocess.Popen[str]) -> str:
        assert child.stdout is not None
        return await asyncio.wait_for(asyncio.to_thread(child.stdout.readline), 20)

    def fail(line: str) -> None:
        raise AssertionError(line)

    async def check() -> None:
        first = await asyncio.to_thread(children, "1")
        box = Postbox(await connect_bus(nats_url, name="prefill", on_wait=fail), P)
        link = GroupLink(box, "gloo", LOCAL)
        await box.open()

        async def send(to: Peer, size: int) -> None:
            link.send(to, [bytes([7]) * size])
            await link.drain(to)

        link.offer(D)
        await until(lambda: link.sharing == [D.id])
        await send(D, 700_000)
        assert await said(first) == "700000 7\n"
        first.kill()
        await asyncio.to_thread(first.wait)
        async with asyncio.timeout(20):
            while D in link._groups_out.lines:  # it is noticed by what is sent
                await send(D, 900_000)
                await asyncio.sleep(0.01)
        second = await asyncio.to_thread(children, "2")
        link.offer(D2)
        await until(lambda: link.sharing == [D2.id])
        await send(D2, 12)
        assert await said(second) == "12 7\n"
        await link.close()
        await box.bus.close()

    run(check)


def test_the_longest_wait_for_one_frame_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_group, "OP_S", 0.2)
    monkeypatch.setattr(group_sender, "REJOIN_S", 0.0)

    async def check(rig: Rig) -> None:
        frames: list[bytes] = []
        sender, receiver = await rig.link(P), await rig.receiver(D, frames)
        sender.offer(D)
        await until(lambda: sender.sharing == [D.id])
        (line,) = sender._groups_out.lines.values()
        receiver._told(P, GroupTold(line.line.group, 0, (1000,)))  # which never comes
        await until(lambda: receiver.sharing == [])
        await until(lambda: sender.sharing == [])
        sender.offer(D)
        await until(lambda: sender.sharing == [D.id])
        sender.send(D, [b"anew"])
        await sender.drain(D)
        await until(lambda: frames == [b"anew"])

    with_rig(check)


def test_a_thread_that_fails_in_no_known_way_ends_its_group(caplog: pytest.LogCaptureFixture) -> None:
    def make(store: object, rank: int) -> PairGroup:
        raise ValueError("unknown")

    async def check(rig: Rig) -> None:
        sender, receiver = await rig.link(P, make=make), await rig.receiver(D, [])
        sender.offer(D)
        await until(lambda: not sender._groups_out.lines and not receiver._groups_in.lines)  # type: ignore[union-attr]
        assert "group_thread_failed" in [record.getMessage() for record in caplog.records]

    with_rig(check)


def test_one_sender_has_a_thread_or_two_here_however_often_it_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_line, "JOIN_S", 0.5)
    go_on = threading.Event()

    def make(store: object, rank: int) -> PairGroup:
        go_on.wait(10)
        raise GroupError("late")

    async def check(rig: Rig) -> None:
        await rig.receiver(D, [], make=make)
        box = await rig.actor(P)
        for number in range(20):
            group = f"{number:016x}"
            box.send(D, GroupOffer(group, "gloo", ""))
            box.send(D, GroupWord(group, "here/0", b"1"))
        await until(lambda: len(rig.told(GroupEnded)) >= 17)
        assert sum(thread.name == "group-prefill-1" for thread in threading.enumerate()) <= 3
        go_on.set()

    with_rig(check)


def test_the_other_end_hears_that_a_worker_leaves() -> None:
    async def check(rig: Rig) -> None:
        sender, receiver = await rig.link(P), await rig.receiver(D, [])
        for leaver, stays in ((sender, receiver), (receiver, sender)):
            sender._groups_out._not_before.clear()
            sender.offer(D)
            await until(lambda: sender.sharing == [D.id] and receiver.sharing == [P.id])
            await leaver.close()
            await until(lambda stays=stays: stays.sharing == [])  # type: ignore[misc]

    with_rig(check)
