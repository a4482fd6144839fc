"""One worker process as the supervisor sees it: how many connections it has, whether it serves, how it ended."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from gateway.workers import member as members
from gateway.workers.line import Line, LineBroken, open_line
from gateway.workers.member import Member
from tests.support.http_twin import run, until

SLEEPS = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)")
LEAVES_A_CHILD = (
    *(sys.executable, "-I", "-S", "-c"),
    "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True)",
    *SLEEPS,
)


class Worker:
    """A process that does nothing, and its ends of what connects it."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self.process = subprocess.Popen(command, process_group=0, stdout=subprocess.PIPE)
        ours, self.channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.member = Member(1, self.process, ours)
        self.line: Line | None = None

    async def open(self) -> None:
        ours, theirs = socket.socketpair()
        await self.member.listen(ours, {"metrics": lambda _: "all"})
        self.line = await open_line(theirs, {"load": lambda _: 7})
        self.line.start()

    async def stands(self, num_taken: int, num_open: int, *, ready: bool) -> None:
        assert self.line is not None
        heard_before = self.member._heard
        self.line.tell("standing", [num_taken, num_open, ready])
        await until(lambda: self.member._heard > heard_before)


@asynccontextmanager
async def started(command: tuple[str, ...] = SLEEPS) -> AsyncIterator[Worker]:
    worker = Worker(command)
    await worker.open()
    assert worker.line is not None
    try:
        yield worker
    finally:
        worker.member.kill()
        await worker.member.ended()
        await worker.member.close()
        await worker.line.close()
        worker.channel.close()
        assert worker.process.stdout is not None
        worker.process.stdout.close()


def give(member: Member) -> None:
    one, other = socket.socketpair()
    assert member.take(one)
    other.close()


def test_it_serves_from_when_it_was_first_heard_until_it_leaves() -> None:
    async def work() -> None:
        async with started() as worker:
            assert not worker.member.serves
            await worker.stands(0, 0, ready=False)
            assert (worker.member.serves, worker.member.ready, worker.member.silent) == (True, False, False)
            assert worker.line is not None
            worker.line.tell("leaving", None)
            await until(lambda: not worker.member.serves)
            assert worker.channel.recv(1) == b""  # it sees that nothing more comes

    run(work())


def test_connections_on_their_way_count_as_its_own() -> None:
    async def work() -> None:
        async with started() as worker:
            for _ in range(5):
                give(worker.member)
            assert worker.member.num_open == 5
            await worker.stands(3, 2, ready=True)  # it has taken three, of which one has ended
            assert worker.member.num_open == 4
            await worker.stands(5, 0, ready=True)
            assert worker.member.num_open == 0

    run(work())


def test_who_is_silent_for_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with started() as worker:
            await worker.stands(0, 0, ready=True)
            assert await worker.member.ask("load", 10.0) == 7
            monkeypatch.setattr(members, "SILENT_S", -1.0)
            with pytest.raises(LineBroken, match="hasn't been heard"):
                await worker.member.ask("load", 10.0)

    run(work())


def test_it_is_answered_what_it_asks() -> None:
    async def work() -> None:
        async with started() as worker:
            assert worker.line is not None
            assert await worker.line.ask("metrics", 10.0) == "all"

    run(work())


def test_its_end_is_told_with_its_code_and_it_gets_nothing_any_more() -> None:
    async def work() -> None:
        async with started() as worker:
            await worker.stands(0, 0, ready=True)
            worker.member.terminate()
            assert await worker.member.ended() == -signal.SIGTERM
            assert not worker.member.serves
            worker.member.kill()  # too late, and no other process is hit

    run(work())


def test_what_it_started_ends_with_it() -> None:
    async def work() -> None:
        async with started(LEAVES_A_CHILD) as worker:
            assert worker.process.stdout is not None
            left = int(await asyncio.to_thread(worker.process.stdout.readline))
            assert await worker.member.ended() == 0
            await until(lambda: not _runs(left))

    run(work())


def _runs(pid: int) -> bool:
    with suppress(OSError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
