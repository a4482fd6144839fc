"""The two queues between a worker's io and its engine: across a socket, or inside one process.

Imports no torch. Frames on the socket are a length and a pickle; both ends are one worker's own processes.
"""

from __future__ import annotations

import asyncio
import pickle
import queue
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from engine.api import Command, Ready, Report, Shutdown
from engine.layout import KVLayout
from engine.pool_memory import PoolMemory

CRASHED = 1
"""Exit code of an engine that raised."""
_LENGTH = struct.Struct("<I")
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Started:
    """What io learns once the engine is ready: sizes, and the layout of the pool that it shares."""

    ready: Ready
    layout: KVLayout
    model_name: str


class EnginePort(Protocol):
    """io's side. Reports come on the event loop, in order."""

    started: Started
    pool: PoolMemory

    def submit(self, command: Command) -> None:
        """Queue a command; never blocks on the engine's step."""

    def listen(self, on_report: Callable[[Report], None], on_death: Callable[[int], None]) -> None:
        """Call ``on_report`` for each report, and ``on_death(exit code)`` once if the engine ends unasked."""

    async def close(self) -> None:
        """Ask the engine to leave, and wait until it has."""


class FrameReader:
    """Cuts a byte stream into pickled frames."""

    def __init__(self) -> None:
        """Starts empty."""
        self._waiting = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """The frames that ``data`` completes."""
        self._waiting += data
        frames: list[Any] = []
        while len(self._waiting) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._waiting)
            end = _LENGTH.size + length
            if len(self._waiting) < end:
                break
            frames.append(pickle.loads(bytes(self._waiting[_LENGTH.size : end])))
            del self._waiting[:end]
        return frames


def pack_frame(value: object) -> bytes:
    """The frame that carries one value."""
    body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


class SocketCommands:
    """The engine's side of the socket: commands in, reports out, blocking."""

    def __init__(self, sock: socket.socket) -> None:
        """``sock`` is connected to io."""
        self._sock = sock
        self._reader = FrameReader()
        self._ready: list[Command] = []

    def next_command(self, seconds: float | None) -> Command | None:
        """See ``engine.loop.NextCommand``. io's end is a ``Shutdown``."""
        while not self._ready:
            self._sock.settimeout(seconds)
            try:
                data = self._sock.recv(_READ_BYTES)
            except (BlockingIOError, TimeoutError):
                return None
            finally:
                self._sock.settimeout(None)
            if not data:
                return Shutdown()
            self._ready = list(self._reader.feed(data))
        return self._ready.pop(0)

    def emit(self, report: Report) -> None:
        """Send a report."""
        self._sock.sendall(pack_frame(report))


class ThreadPort:
    """The in-process twin: the engine runs in a thread of this process."""

    def __init__(
        self,
        started: Started,
        pool: PoolMemory,
        run: Callable[[Callable[[float | None], Command | None], Callable[[Report], None]], None],
    ) -> None:
        """``run(next_command, emit)`` is the engine's loop; it starts with ``listen``. Needs a running loop."""
        self.started = started
        self.pool = pool
        self._run = run
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread: threading.Thread | None = None
        self._closing = False

    def submit(self, command: Command) -> None:
        """Queue a command."""
        self._commands.put(command)

    def listen(self, on_report: Callable[[Report], None], on_death: Callable[[int], None]) -> None:
        """Start the engine's thread."""

        def emit(report: Report) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(on_report, report)

        def work() -> None:
            try:
                self._run(self._next_command, emit)
            finally:
                if not self._closing and not self._loop.is_closed():
                    self._loop.call_soon_threadsafe(on_death, CRASHED)

        self._thread = threading.Thread(target=work, name="engine", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Stop the thread after its current step."""
        self._closing = True
        self._commands.put(Shutdown())
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self.pool.close()

    def _next_command(self, seconds: float | None) -> Command | None:
        try:
            return self._commands.get(block=seconds != 0, timeout=seconds or None)
        except queue.Empty:
            return None
