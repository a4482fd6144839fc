"""Shared memory between real processes: one is stopped and wakes up late, or is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvtransfer.shm_link import ShmLink
from protocol.messages import Peer
from tests.support.stack import run, until

P, D, D2 = Peer("prefill-1", "1"), Peer("decode-1", "1"), Peer("decode-2", "1")
SEGMENT_BYTES = 4 << 20
RECEIVER = """
import asyncio, sys, zlib
from pathlib import Path
from kvtransfer.shm_link import ShmLink
from protocol.messages import Peer

def taken(frame):
    right = zlib.crc32(frame[4:]) == int.from_bytes(frame[:4], "little")
    print("right" if right else "wrong", frame[4], flush=True)

async def main():
    me = Peer("decode-1", "1")
    link = ShmLink(Path(sys.argv[1]), me, 1 << 20)
    await link.receive(me, taken)
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def frame(number: int) -> bytes:
    """It says itself whether it is whole."""
    body = bytes([number]) * 200_000
    return zlib.crc32(body).to_bytes(4, "little") + body


@pytest.fixture
def child(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", RECEIVER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


async def lines(child: subprocess.Popen[str], count: int) -> list[str]:
    assert child.stdout is not None
    return [await asyncio.wait_for(asyncio.to_thread(child.stdout.readline), 10) for _ in range(count)]


async def sharing(folder: Path) -> ShmLink:
    """A sender that the child has proved to."""
    link = ShmLink(folder, P, SEGMENT_BYTES)
    link.offer(D)
    await until(lambda: link.sharing == [D.id])
    return link


def num_files(folder: Path) -> int:
    return len(list(folder.iterdir()))


def held_bytes(link: ShmLink) -> int:
    return link._sender._segment.held_bytes


def test_a_process_that_was_stopped_reads_what_is_kept_and_drops_what_was_given_to_others(
    tmp_path: Path, child: subprocess.Popen[str]
) -> None:
    async def check() -> None:
        link = await sharing(tmp_path)
        link.send(D, [frame(1)])
        await link.drain(D)
        assert await lines(child, 1) == ["right 1\n"]
        os.kill(child.pid, signal.SIGSTOP)
        for number in (2, 3, 4):
            link.send(D, [frame(number)])
            await link.drain(D)
        os.kill(child.pid, signal.SIGCONT)
        assert await lines(child, 3) == ["right 2\n", "right 3\n", "right 4\n"]
        await until(lambda: held_bytes(link) == 0)

        os.kill(child.pid, signal.SIGSTOP)
        for number in (5, 6, 7):
            link.send(D, [frame(number)])
            await link.drain(D)
        link.lost(D)
        other, taken = ShmLink(tmp_path, D2, SEGMENT_BYTES), []
        await other.receive(D2, lambda data: taken.append(data[4]))
        link.offer(D2)
        await until(lambda: link.sharing == [D2.id])
        for number in (8, 9, 10):
            link.send(D2, [frame(number)])
        os.kill(child.pid, signal.SIGCONT)
        link.offer(D)
        await until(lambda: D.id in link.sharing)
        link.send(D, [frame(11)])
        for peer in (D, D2):
            await link.drain(peer)
        assert await lines(child, 1) == ["right 11\n"], "5, 6 and 7 were dropped, and nothing else was taken for them"
        await until(lambda: taken == [8, 9, 10])
        await other.close()
        await link.close()

    run(check)


def test_a_killed_process_frees_its_places_and_leaves_a_socket_that_the_next_removes(
    tmp_path: Path, child: subprocess.Popen[str]
) -> None:
    async def check() -> None:
        link = await sharing(tmp_path)
        os.kill(child.pid, signal.SIGSTOP)
        for number in (1, 2):
            link.send(D, [frame(number)])
            await link.drain(D)
        assert held_bytes(link) > 400_000
        os.kill(child.pid, signal.SIGKILL)
        await until(lambda: held_bytes(link) == 0 and link.sharing == [])
        await asyncio.to_thread(child.wait, 10)  # its listening socket may be closed after the connection
        other = ShmLink(tmp_path, D2, SEGMENT_BYTES)
        await other.receive(D2, lambda data: None)
        assert num_files(tmp_path) == 1, "that of the living one"
        await other.close()
        await link.close()

    run(check)
