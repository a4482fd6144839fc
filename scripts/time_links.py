"""Time the links between two workers of one host: `python scripts/time_links.py`.

Prints for each link what a MiB of block contents costs: CPU milliseconds in the sending io process, in the receiving
one and in the NATS server, with digests, receipts and records as in a real hand-over; and MiB a second. There is no
engine: the two do nothing else. Prompts of 512 tokens of the default model, one after the other, blocks scattered as
in a pool that has been in use.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from cpu_time import cpu_s

from engine.api import Computed, Granted
from engine.layout import CacheGroup, KVLayout
from engine.pool_memory import PoolMemory
from kvferry.brokers import nats_broker, running
from kvferry.secrets_nats import Rights
from kvtransfer.choose_link import choose_link
from kvtransfer.contents import PoolContents
from kvtransfer.credit import CreditPool
from kvtransfer.link import Link
from kvtransfer.pieces import unpack_header
from kvtransfer.receiver import Receiver, ReceiverParts
from kvtransfer.sender import Sender, SenderParts
from protocol.handover import State
from protocol.messages import Demand, Grant, GrantRequest, KVHandover, Peer, Receipt
from protocol.sampling import Sampling
from runtime.nats_bus import connect_bus
from runtime.postbox import Postbox
from runtime.repeats import Repeats
from runtime.worker_settings import WorkerSettings

LAYOUT = KVLayout((CacheGroup(tuple(range(30)), 3, 64),), "bfloat16")
PROMPT_BLOCKS = 32
CHUNK_BLOCKS = 32
"""A prefill step's worth, 512 tokens: pieces of 384 KiB."""
NUM_BLOCKS = 256
WARM_UP, TRANSFERS = 8, 40
MIB = 1 << 20
NAMES = ("nats", "shm", "gloo")
P, D = Peer("prefill-1", "1"), Peer("decode-1", "1")


def blocks(number: int) -> tuple[int, ...]:
    """A prompt's block table: runs of a few blocks each."""
    runs = [list(range(start, start + 4)) for start in range(0, NUM_BLOCKS, 4)]
    random.Random(number).shuffle(runs)
    return tuple(block for run in runs for block in run)[:PROMPT_BLOCKS]


async def ends(url: str, name: str, me: Peer, folder: Path) -> tuple[Postbox, Link]:
    """A worker's connections."""

    def waiting(line: str) -> None:
        raise ConnectionError(line)

    buses = [await connect_bus(url, name=f"{me.id}-{i}", on_wait=waiting) for i in range(2)]
    settings = WorkerSettings(model="none", kv_link=name, shm_dir=str(folder))
    box = Postbox(buses[0], me)
    return box, choose_link(settings, box, buses[1])


async def receive(url: str, name: str, folder: Path, pipe: Connection) -> None:
    """The decode worker's io, without an engine; ends when it is told to."""
    box, link = await ends(url, name, D, folder)
    pool = PoolMemory(LAYOUT, NUM_BLOCKS)
    pool.buffer[:] = bytes(len(pool.buffer))  # as in use: its pages are there
    parts = ReceiverParts(box, PoolContents(pool), CreditPool())
    open_now: dict[str, Receiver] = {}

    def grant(sender: Peer, question: GrantRequest) -> None:
        number, key = int(question.request_id), (question.request_id, question.attempt)

        def complete(record: KVHandover) -> None:
            open_now.pop(record.transfer_id).adopted()

        receiver = Receiver(parts, key, sender, Granted(key, 0, blocks(-number - 1), ()), complete)
        open_now[receiver.transfer_id] = receiver
        box.send(sender, receiver.grant())

    def land(frame: memoryview) -> None:
        piece = unpack_header(frame)
        if piece.transfer_id in open_now:  # else it was sent twice
            open_now[piece.transfer_id].land(frame, piece)

    def record(_: Peer, record: KVHandover) -> None:
        if record.transfer_id in open_now:
            open_now[record.transfer_id].record(record)

    box.on(GrantRequest, grant)
    box.on(KVHandover, record)
    await link.receive(D, land)
    await box.open()
    pipe.send(0.0)
    for _ in range(2):  # before and after what is timed
        await asyncio.to_thread(pipe.recv)
        pipe.send(time.process_time())
    await asyncio.to_thread(pipe.recv)
    await link.close()
    await box.bus.close()


def receiver_process(url: str, name: str, folder: str, pipe: Connection) -> None:
    """Run it."""
    asyncio.run(receive(url, name, Path(folder), pipe))


async def hand_over(parts: SenderParts, senders: dict[str, Sender], number: int) -> None:
    """One prompt's blocks, from question to adoption."""
    key, table = (str(number), 1), blocks(number)
    adopted = asyncio.get_running_loop().create_future()

    def ended(state: State, code: str, message: str) -> None:
        adopted.set_result((state, code, message))

    question = GrantRequest(*key, P, Demand(PROMPT_BLOCKS * 16, (0,), (0,), 1), (), "", "", 10_000)
    sender = senders[key[0]] = Sender(parts, question, D, ended)
    for done in range(CHUNK_BLOCKS, PROMPT_BLOCKS + 1, CHUNK_BLOCKS):
        sender.computed(0, Computed(key, -1, 0, done * 16, table[:done], done == PROMPT_BLOCKS))
    prompt = tuple(range(PROMPT_BLOCKS * 16))

    def record(grant: Grant, num_pieces: int, num_bytes: int, digest: bytes) -> KVHandover:
        tokens = len(prompt)
        about = (grant.transfer_id, P, prompt, (), Sampling(), "", tokens, (), num_pieces, num_bytes, digest, 0, 0)
        return KVHandover(*key, *about)

    sender.finish(record)
    state, _, message = await adopted
    if state is not State.ADOPTED:
        raise RuntimeError(message)
    del senders[key[0]]


async def send(url: str, name: str, folder: Path, pipe: Connection, server: int) -> str:
    """The prefill worker's io, without an engine; returns the line of figures."""
    box, link = await ends(url, name, P, folder)
    pool = PoolMemory(LAYOUT, NUM_BLOCKS)
    pool.buffer[:] = random.Random(1).randbytes(len(pool.buffer))
    parts = SenderParts(box, Repeats(), link, PoolContents(pool))
    senders: dict[str, Sender] = {}

    def receipt(_: Peer, receipt: Receipt) -> None:
        if receipt.request_id in senders:
            senders[receipt.request_id].receipt(receipt)

    box.on(Grant, lambda _, grant: senders[grant.request_id].granted(grant))
    box.on(Receipt, receipt)
    await box.open()
    pipe.recv()
    link.offer(D)
    while name != "nats" and not link.sharing:  # noqa: ASYNC110 - nothing says when
        await asyncio.sleep(0.01)
    for number in range(WARM_UP):
        await hand_over(parts, senders, number)
    before = (*times(pipe, server), time.perf_counter())
    for number in range(WARM_UP, WARM_UP + TRANSFERS):
        await hand_over(parts, senders, number)
    after = (time.perf_counter(), *times(pipe, server))
    pipe.send("end")
    await link.close()
    await box.bus.close()
    num_mib = TRANSFERS * PROMPT_BLOCKS * LAYOUT.block_bytes / MIB
    mine, theirs, servers = ((after[i + 1] - before[i]) * 1000 / num_mib for i in range(3))
    total = mine + theirs + servers
    return (
        f"{name:5} CPU ms a MiB: {total:5.2f} = {mine:.2f} sending + {theirs:.2f} receiving + {servers:.2f} server; "
        f"{num_mib / (after[0] - before[3]):5.0f} MiB/s"
    )


def times(pipe: Connection, server: int) -> tuple[float, float, float]:
    """CPU seconds so far: of this process, of the receiver, of the server."""
    pipe.send("time")
    return time.process_time(), pipe.recv(), cpu_s(server)


def child_called(name: str) -> int:
    """The id of this process's child of that name."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return next(int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().startswith(name))


@contextmanager
def receiving(url: str, name: str, folder: Path) -> Iterator[Connection]:
    """The other process, as long as the block lasts."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=receiver_process, args=(url, name, str(folder), there), daemon=True
    )
    process.start()
    try:
        yield here
    finally:
        process.join(5)
        process.kill()


def main() -> None:
    """Measure each link and print."""
    names = sys.argv[1:] or NAMES
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            with (
                running(lambda here: nats_broker(here, {"test": Rights((">",), (">",))}), Path(folder)) as broker,
                receiving(broker.urls["test"], name, Path(folder)) as pipe,
            ):
                print(asyncio.run(send(broker.urls["test"], name, Path(folder), pipe, child_called("nats-server"))))


if __name__ == "__main__":
    main()
