"""The way from prompt to tokens with contents in shared memory: as it is, damaged, crowded, and across lives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kvtransfer.ledger import ledger
from kvtransfer.link import Buffer, BusLink, Link
from kvtransfer.segment import Place, Segment
from kvtransfer.shm_link import AutoLink, ShmLink
from protocol.messages import Peer
from runtime.memory_bus import MemoryBus
from tests.support.scripted_gateway import ScriptedGateway
from tests.support.stack import Stack, run, until

PROMPT = [3 + (i * i) % 97 for i in range(77)]

Check = Callable[[Stack, ScriptedGateway], Awaitable[None]]


def with_stack(check: Check, folder: Path, *, segment_bytes: int = 1 << 20) -> None:
    """One prefill and one decode worker that may share memory; idle and whole again at the end."""

    async def body() -> None:
        stack = Stack()

        def link(me: Peer) -> Link:
            return AutoLink(ShmLink(folder, me, segment_bytes), BusLink(MemoryBus(stack.hub)))

        stack.make_link = link
        await stack.add("decode", "decode-1", local_prefill_tokens=-1)
        await stack.add("prefill", "prefill-1", max_num_batched_tokens=32)
        gateway = await ScriptedGateway(stack).open()
        await check(stack, gateway)
        gateway.wanted.clear()
        await stack.idle()
        await gateway.close()
        await stack.close()

    run(body)
    assert not list(folder.iterdir())


def link_of(stack: Stack, worker_id: str) -> Link:
    return stack.nodes[worker_id].node.link


async def warm(stack: Stack, gateway: ScriptedGateway) -> None:
    """A first request, during which the two find out that they share memory."""
    gateway.ask(PROMPT[:20], request_id="warm")
    await gateway.finished(0, request_id="warm")
    await until(lambda: link_of(stack, "prefill-1").sharing == ["decode-1"])


async def split_and_alone(gateway: ScriptedGateway, number: int) -> tuple[list[list[int]], list[list[int]]]:
    """What the pair makes of a prompt, and what the decode worker alone makes of it."""
    prompt = [2 + number, *PROMPT]
    gateway.ask(prompt, request_id=f"split-{number}")
    split = await gateway.finished(0, request_id=f"split-{number}")
    gateway.ask(prompt, request_id=f"alone-{number}", prefill="decode-1")
    return split, await gateway.finished(0, request_id=f"alone-{number}")


def test_the_tokens_are_those_of_one_worker_and_nothing_goes_by_the_bus(tmp_path: Path) -> None:
    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        await warm(stack, gateway)
        sent = {name: each.sent_bytes for name, each in link_of(stack, "prefill-1").counters.items()}
        for number in range(3):
            split, alone = await split_and_alone(gateway, number)
            assert split == alone
        counters = link_of(stack, "prefill-1").counters
        assert counters["nats"].sent_bytes == sent["nats"]
        assert counters["shm"].sent_bytes > sent["shm"]
        assert link_of(stack, "decode-1").counters["shm"].received_bytes == counters["shm"].sent_bytes
        for worker, other in (("prefill-1", "decode-1"), ("decode-1", "prefill-1")):
            assert ledger(stack.nodes[worker].worker)["link"] == {"name": "auto", "sharing": [other]}

    with_stack(check, tmp_path)


def test_damaged_bytes_are_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged: set[bytes] = set()
    real = Segment.put

    def put(segment: Segment, frame: list[Buffer], num_bytes: int) -> Place | None:
        """Flip a bit of each piece that is laid down for the first time, in its header or in its bytes."""
        whole = bytearray(b"".join(frame))
        if (header := bytes(whole[:48])) not in damaged:
            damaged.add(header)
            whole[len(damaged) * 41 % len(whole)] ^= 0x10
        return real(segment, [bytes(whole)], num_bytes)

    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        await warm(stack, gateway)
        with monkeypatch.context() as patched:
            patched.setattr(Segment, "put", put)
            split, alone = await split_and_alone(gateway, 0)
            assert split == alone
        assert damaged

    with_stack(check, tmp_path)


def test_a_segment_that_is_too_small_for_most_pieces_costs_no_request(tmp_path: Path) -> None:
    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        await warm(stack, gateway)
        for number in range(3):
            split, alone = await split_and_alone(gateway, number)
            assert split == alone
        assert link_of(stack, "prefill-1").fallbacks["full"] > 0

    with_stack(check, tmp_path, segment_bytes=4096)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_worker_that_was_killed_and_started_anew_shares_memory_again(tmp_path: Path, role: str) -> None:
    async def check(stack: Stack, gateway: ScriptedGateway) -> None:
        await warm(stack, gateway)
        await stack.remove(f"{role}-1")
        settings = {"max_num_batched_tokens": 32} if role == "prefill" else {"local_prefill_tokens": -1}
        await stack.add(role, f"{role}-1", **settings)
        gateway.ask(PROMPT[:20], request_id="first")
        await gateway.finished(0, request_id="first")
        await until(lambda: link_of(stack, "prefill-1").sharing == ["decode-1"])
        before = link_of(stack, "prefill-1").counters["shm"].sent_bytes
        split, alone = await split_and_alone(gateway, 0)
        assert split == alone
        assert link_of(stack, "prefill-1").counters["shm"].sent_bytes > before

    with_stack(check, tmp_path)
