"""From prompt to tokens with contents in shared memory and by process groups: damaged, crowded, across lives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from kvtransfer import group_sender, pair_group
from kvtransfer.auto_link import AutoLink
from kvtransfer.direct_link import DirectLink
from kvtransfer.group_link import GroupLink
from kvtransfer.ledger import ledger
from kvtransfer.link import Buffer, BusLink, Link
from kvtransfer.pair_group import Gloo, GlooGroup
from kvtransfer.segment import Place, Segment
from kvtransfer.shm_link import ShmLink
from protocol.codec import decode
from protocol.messages import GroupTold
from runtime.memory_bus import MemoryBus
from runtime.postbox import Postbox
from tests.support.scripted_gateway import ScriptedGateway, gateway_of
from tests.support.stack import Stack, run, until

PROMPT = [3 + (i * i) % 97 for i in range(77)]

KINDS = pytest.mark.parametrize("kind", ["shm", "gloo"])

Check = Callable[[Stack, ScriptedGateway], Awaitable[None]]


def with_stack(check: Check, folder: Path, kind: str = "shm", *, segment_bytes: int = 1 << 20) -> None:
    """One prefill and one decode worker that may reach each other directly; idle and whole again at the end."""

    def direct(postbox: Postbox) -> DirectLink:
        if kind == "gloo":
            return GroupLink(postbox, "gloo", Gloo("127.0.0.1"))
        return ShmLink(folder, postbox.me, segment_bytes)

    async def body() -> None:
        stack = Stack()

        def link(postbox: Postbox) -> Link:
            return AutoLink(direct(postbox), BusLink(MemoryBus(stack.hub)))

        stack.make_link = link
        await stack.add("decode", "decode-1", local_prefill_tokens=-1)
        await stack.add("prefill", "prefill-1", max_num_batched_tokens=32)
        async with gateway_of(stack) as gateway:
            await check(stack, gateway)

    run(body)
    assert not list(folder.iterdir())


def link_of(stack: Stack, worker_id: str) -> Link:
    return stack.nodes[worker_id].node.link


async def warm(stack: Stack, gateway: ScriptedGateway, name: str = "warm") -> None:
    """A request, during which the two find out that they reach each other."""
    gateway.ask(PROMPT[:20], request_id=name)
    await gateway.finished(0, request_id=name)
    await until(lambda: link_of(stack, "prefill-1").sharing == ["decode-1"])


async def split_and_alone(gateway: ScriptedGateway, number: int) -> tuple[list[list[int]], list[list[int]]]:
    """What the pair makes of a prompt, and what the decode worker alone makes of it."""
    prompt = [2 + number, *PROMPT]
    gateway.ask(prompt, request_id=f"split-{number}")
    split = await gateway.finished(0, request_id=f"split-{number}")
    gateway.ask(prompt, request_id=f"alone-{number}", prefill="decode-1")
    return split, await gateway.finished(0, request_id=f"alone-{number}")


@KINDS
def test_the_tokens_are_those_of_one_worker_and_no_bytes_go_by_the_bus(tmp_path: Path, kind: str) -> None:
    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        await warm(stack, gateway)
        sent = {name: each.sent_bytes for name, each in link_of(stack, "prefill-1").counters.items()}
        for number in range(3):
            split, alone = await split_and_alone(gateway, number)
            assert split == alone
        counters = link_of(stack, "prefill-1").counters
        assert counters["nats"].sent_bytes == sent["nats"]
        assert counters[kind].sent_bytes > sent[kind]
        assert link_of(stack, "decode-1").counters[kind].received_bytes == counters[kind].sent_bytes
        for worker, other in (("prefill-1", "decode-1"), ("decode-1", "prefill-1")):
            assert ledger(stack.nodes[worker].worker)["link"] == {"name": "auto", "sharing": [other]}

    with_stack(check, tmp_path, kind)


@KINDS
def test_damaged_bytes_are_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    damaged: set[bytes] = set()
    put_whole, send_whole = Segment.put, GlooGroup.send

    def flip(whole: bytearray, num_bytes: int) -> None:
        """One bit of each piece that goes for the first time, in its header or in its bytes."""
        if (header := bytes(whole[:48])) not in damaged:
            damaged.add(header)
            whole[len(damaged) * 41 % num_bytes] ^= 0x10

    def put(segment: Segment, frame: list[Buffer], num_bytes: int) -> Place | None:
        whole = bytearray().join(frame)
        flip(whole, num_bytes)
        return put_whole(segment, [whole], num_bytes)

    def send(group: GlooGroup, frame: bytearray, num_bytes: int) -> None:
        flip(frame, num_bytes)
        send_whole(group, frame, num_bytes)

    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        await warm(stack, gateway)
        with monkeypatch.context() as patched:
            patched.setattr(Segment, "put", put)
            patched.setattr(GlooGroup, "send", send)
            split, alone = await split_and_alone(gateway, 0)
            assert split == alone
        assert damaged

    with_stack(check, tmp_path, kind)


def test_a_segment_that_is_too_small_for_most_pieces_costs_no_request(tmp_path: Path) -> None:
    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        await warm(stack, gateway)
        for number in range(3):
            split, alone = await split_and_alone(gateway, number)
            assert split == alone
        assert link_of(stack, "prefill-1").fallbacks["full"] > 0

    with_stack(check, tmp_path, segment_bytes=4096)


@KINDS
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_worker_that_was_killed_and_started_anew_is_reached_again(tmp_path: Path, role: str, kind: str) -> None:
    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        await warm(stack, gateway)
        await stack.remove(f"{role}-1")
        settings = {"max_num_batched_tokens": 32} if role == "prefill" else {"local_prefill_tokens": -1}
        await stack.add(role, f"{role}-1", **settings)
        gateway.ask(PROMPT[:20], request_id="first")
        await gateway.finished(0, request_id="first")
        await until(lambda: link_of(stack, "prefill-1").sharing == ["decode-1"])
        before = link_of(stack, "prefill-1").counters[kind].sent_bytes
        split, alone = await split_and_alone(gateway, 0)
        assert split == alone
        assert link_of(stack, "prefill-1").counters[kind].sent_bytes > before

    with_stack(check, tmp_path, kind)


def test_a_group_that_missed_a_message_ends_without_a_loss_and_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_sender, "REJOIN_S", 0.0)
    lost: list[GroupTold] = []

    def lose_one(subject: str, payload: bytes) -> Iterator[bytes]:
        if "contents" not in subject and isinstance(told := decode(payload)[1], GroupTold) and not lost:
            lost.append(told)
        else:
            yield payload

    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        await warm(stack, gateway)
        stack.hub.filter = lose_one
        for number in range(3):
            split, alone = await split_and_alone(gateway, number)
            assert split == alone
        assert lost
        await warm(stack, gateway, "again")
        before = link_of(stack, "prefill-1").counters["gloo"].sent_bytes
        split, alone = await split_and_alone(gateway, 3)
        assert split == alone
        assert link_of(stack, "prefill-1").counters["gloo"].sent_bytes > before

    with_stack(check, tmp_path, "gloo")


def test_frames_that_vanish_cost_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind something that drops packets: nothing arrives by the group, and the sender doesn't know."""
    monkeypatch.setattr(pair_group, "OP_S", 1.5)

    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        await warm(stack, gateway)
        monkeypatch.setattr(GlooGroup, "send", lambda group, frame, num_bytes: None)
        split, alone = await split_and_alone(gateway, 0)
        assert split == alone
        await until(lambda: link_of(stack, "prefill-1").sharing == [])

    with_stack(check, tmp_path, "gloo")
