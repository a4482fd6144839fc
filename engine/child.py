"""The engine as a process of its own, seen from io: start it, learn its pool, talk over a socket."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from engine.api import Command, Report, Shutdown
from engine.config import EngineConfig
from engine.pool_memory import PoolMemory
from engine.port import FrameReader, Started, pack_frame

CLOSE_S = 10.0
"""How long a closing engine may take for its current step."""
SPIN = {"GOMP_SPINCOUNT": "3000"}
"""Compute threads that wait for each other spin for a bounded time: with libgomp's default, two workers on two
cores slow each other up to a hundredfold; with none, small matmuls take twice as long."""
NOT_ITS_CONCERN = ("KVFERRY_NATS_", "KVFERRY_REDIS_", "KVFERRY_API_KEY")
"""Variables with credentials: an engine talks to its worker's io alone."""
_READ_BYTES = 1 << 20


class EngineStartError(Exception):
    """The engine ended before it was ready; its own log line says why."""

    def __init__(self, exit_code: int) -> None:
        """``exit_code`` 2 means a bad setting or model folder: starting again won't help."""
        super().__init__(f"the engine process ended with exit code {exit_code} before it was ready")
        self.exit_code = exit_code


class ChildPort:
    """io's side of an engine process. When one of the two ends, the other ends at once."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        sock: socket.socket,
        started: Started,
        pool: PoolMemory,
        early: tuple[FrameReader, list[Report]],
    ) -> None:
        """Made by ``start_engine``. ``early`` is what came with the first frame: reports, and a part of one."""
        self.started = started
        self.pool = pool
        self._child = child
        self._sock = sock
        self._reader, self._early = early
        self._loop = asyncio.get_running_loop()
        self._outgoing: asyncio.Queue[Command] = asyncio.Queue()
        self._closing = False
        self._writer = self._loop.create_task(self._write())
        self._on_report: Callable[[Report], None] = lambda report: None
        self._on_death: Callable[[int], None] = lambda code: None

    def submit(self, command: Command) -> None:
        """Queue a command."""
        self._outgoing.put_nowait(command)

    def listen(self, on_report: Callable[[Report], None], on_death: Callable[[int], None]) -> None:
        """Begin to read reports."""
        self._on_report, self._on_death = on_report, on_death
        for report in self._early:
            self._loop.call_soon(on_report, report)
        self._early = []
        self._loop.add_reader(self._sock, self._readable)

    async def close(self) -> None:
        """Let the engine leave after its step; kill it if it doesn't within ``CLOSE_S``."""
        self._closing = True
        self.submit(Shutdown())
        try:
            await asyncio.wait_for(asyncio.to_thread(self._child.wait), CLOSE_S)
        except TimeoutError:
            self._child.kill()
            await asyncio.to_thread(self._child.wait)
        self._writer.cancel()
        await asyncio.gather(self._writer, return_exceptions=True)
        self._loop.remove_reader(self._sock)
        self._sock.close()
        self.pool.close()

    async def _write(self) -> None:
        while True:
            command = await self._outgoing.get()
            try:
                await self._loop.sock_sendall(self._sock, pack_frame(command))
            except (BrokenPipeError, ConnectionResetError):
                return

    def _readable(self) -> None:
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self._loop.remove_reader(self._sock)
            if not self._closing:
                self._on_death(self._child.wait())
            return
        for report in self._reader.feed(data):
            self._on_report(report)


async def start_engine(config: EngineConfig, role: str) -> ChildPort:
    """Start the engine's process and wait until its model is loaded. Raises ``EngineStartError``.

    The child's command line names its service and worker; it dies with this process.
    """
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "kvferry", "engine", "--role", role, "--fd", str(theirs.fileno())]
    child = _spawn([*command, "--worker-id", config.worker_id], theirs.fileno())
    theirs.close()
    ours.sendall(pack_frame(config))
    try:
        started, fd, early = await asyncio.to_thread(_receive_start, ours)
    except (EOFError, ConnectionResetError) as error:
        code = await asyncio.to_thread(child.wait)
        raise EngineStartError(code) from error
    except asyncio.CancelledError:
        child.kill()
        raise
    pool = PoolMemory(started.layout, started.ready.num_blocks, fd)
    ours.setblocking(False)
    return ChildPort(child, ours, started, pool, early)


def _spawn(command: list[str], fd: int) -> subprocess.Popen[bytes]:
    """From the main thread: the kernel ends the child with the thread that forked it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_ITS_CONCERN)}
    environment = {**SPIN, **kept, "KVFERRY_PARENT_PID": str(os.getpid())}
    return subprocess.Popen(command, pass_fds=(fd,), env=environment)


def _first_frame(sock: socket.socket) -> tuple[Any, FrameReader, list[Any]]:
    """The first value that the other end sends, the reader, and the values that came with it. Raises ``EOFError``."""
    reader = FrameReader()
    while True:
        data = sock.recv(_READ_BYTES)
        if not data:
            raise EOFError("the other end closed before it had said anything")
        frames = reader.feed(data)
        if frames:
            return frames[0], reader, frames[1:]


def _receive_start(sock: socket.socket) -> tuple[Started, int, tuple[FrameReader, list[Report]]]:
    """The engine's first frame, the pool's file descriptor, which travels beside its first byte, and what followed."""
    data, fds, _, _ = socket.recv_fds(sock, 1, 1)
    if not data:
        raise EOFError("the engine closed its end")
    started, reader, early = _first_frame(sock)
    return started, fds[0], (reader, early)


def send_start(sock: socket.socket, started: Started, pool: PoolMemory) -> None:
    """The engine's side of ``_receive_start``."""
    socket.send_fds(sock, [b"\0"], [pool.fd])
    sock.sendall(pack_frame(started))


def receive_config(fd: int) -> tuple[socket.socket, EngineConfig]:
    """The engine's first act: its socket and what it is told."""
    sock = socket.socket(fileno=fd)
    config, _, _ = _first_frame(sock)
    return sock, config
