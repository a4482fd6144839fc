"""One worker process, seen from the supervisor: started, offered connections, heard, ended."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from gateway.workers.handing import hand_over
from gateway.workers.line import Hear, Line, LineBroken, open_line
from gateway.workers.seat import LEAVING, STANDING, Briefing

SILENT_S = 2.0
"""Who says nothing for so long is stuck; it says four times a second how it stands."""


class Member:
    """One life of a process. It dies with us. Made by ``start_member``, in the main thread."""

    def __init__(self, number: int, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self.number = number
        self.pid = process.pid
        self._line: Line | None = None
        self.ready = False
        self.num_handed = 0
        self._num_taken = self._num_open = 0
        self._heard = 0.0
        self._leaving = False
        self._process, self._channel = process, channel
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._reap)

    @property
    def num_open(self) -> int:
        """Its connections: those that it has, and those on their way to it."""
        return self.num_handed - self._num_taken + self._num_open

    @property
    def begun(self) -> bool:
        """Whether it has been heard yet."""
        return self._heard > 0.0

    @property
    def serves(self) -> bool:
        """Whether it takes connections."""
        return self.begun and not self._leaving and not self._ended.done()

    @property
    def silent(self) -> bool:
        """Whether it hasn't been heard for long."""
        return time.monotonic() - self._heard > SILENT_S

    def take(self, connection: socket.socket) -> bool:
        """Hand it a connection; False if it can't have it now."""
        if not hand_over(self._channel, connection):
            return False
        self.num_handed += 1
        return True

    async def ask(self, what: str, within_s: float) -> Any:
        """Its answer. Raises ``LineBroken``."""
        if self._line is None or self.silent:
            raise LineBroken(f"it hasn't been heard for {SILENT_S:g} s")
        return await self._line.ask(what, within_s)

    async def ended(self) -> int:
        """Wait for its end; return the exit code (negative: the signal that ended it)."""
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        """Ask it to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self._signal(signal.SIGKILL)

    async def close(self) -> None:
        """Forget it after its end."""
        if self._line is not None:
            await self._line.close()
        self._channel.close()

    async def listen(self, line: socket.socket, answers: Mapping[str, Hear]) -> None:
        """Hear what it says of itself, and answer what it asks."""
        self._line = await open_line(line, {**answers, STANDING: self._stands, LEAVING: self._leaves})
        self._line.start()

    def _signal(self, number: signal.Signals) -> None:
        if not self._ended.done():
            self._process.send_signal(number)

    def _stands(self, said: Sequence[Any]) -> None:
        self._num_taken, self._num_open, self.ready = said
        self._heard = time.monotonic()

    def _leaves(self, _: object) -> None:
        """It takes what is on its way to it, and sees then that it was the last."""
        self._leaving = True
        self._channel.shutdown(socket.SHUT_WR)

    def _reap(self) -> None:
        """Take its exit code; what it left running in its group ends too."""
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
        self._ended.set_result(self._process.wait())


async def start_member(number: int, briefing: Briefing, answers: Mapping[str, Hear]) -> Member:
    """Start a worker; ``answers`` are for what it asks. Its command line names it."""
    channel, their_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line, their_line = socket.socketpair()
    fds = their_channel.fileno(), their_line.fileno()
    flags = ["--channel-fd", str(fds[0]), "--line-fd", str(fds[1]), "--gateway-id", briefing.settings.gateway_id]
    try:
        with their_channel, their_line:
            process = _spawn(flags, fds)
        _brief(channel, process, briefing)
    except BaseException:
        channel.close()
        line.close()
        raise
    channel.setblocking(False)
    member = Member(number, process, channel)
    await member.listen(line, answers)
    return member


def _brief(channel: socket.socket, process: subprocess.Popen[bytes], briefing: Briefing) -> None:
    try:
        channel.send(pickle.dumps(briefing))
    except OSError:
        process.kill()
        process.wait()
        raise


def _spawn(flags: list[str], fds: tuple[int, ...]) -> subprocess.Popen[bytes]:
    """In a process group of its own, so that a terminal's Ctrl-C reaches us alone."""
    command = [sys.executable, "-m", "kvferry", "gateway-worker", *flags]
    environment = {**os.environ, "KVFERRY_PARENT_PID": str(os.getpid())}
    return subprocess.Popen(command, pass_fds=fds, env=environment, process_group=0)
