"""A worker process's place among its siblings: connections come from the supervisor, and it is asked how all stand."""

from __future__ import annotations

import argparse
import asyncio
import pickle
import socket
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from gateway.errors import GatewayError
from gateway.metrics import HttpMetrics
from gateway.settings import GatewaySettings
from gateway.workers.handing import Arrivals
from gateway.workers.line import Line, LineBroken, open_line
from gateway.workers.merging import told
from runtime.tasks import spawn

BEAT_S = 0.25
"""How often the supervisor hears how many connections are open here, and whether requests can be taken."""

LAST_S = 1.0
"""How long the last connections may be on their way here at the end."""

ANSWER_S = 3.0
"""Within which the supervisor knows how all stand; it waits less for each of them."""

MAX_BRIEFING_BYTES = 128 << 10

METRICS, LOAD, STANDING, LEAVING = "metrics", "load", "standing", "leaving"


@dataclass(frozen=True, slots=True)
class Briefing:
    """What a worker is told at its start: its own part of the settings, and what holds for all of them."""

    settings: GatewaySettings
    url: str
    num_workers: int
    created: int
    """Since when the model is served, in seconds since 1970: all say the same."""


class Seat:
    """Made before the loop runs; ``join`` and the rest belong into it."""

    def __init__(self, briefing: Briefing, channel: socket.socket, line: socket.socket) -> None:
        """``channel`` brings connections, ``line`` is for words."""
        self.briefing = briefing
        self._channel, self._line_end = channel, line
        self._line: Line | None = None
        self._arrivals: Arrivals | None = None
        self._connections: Sized = ()
        self._beating: asyncio.Task[None] | None = None
        self._ready: Callable[[], bool] = lambda: False

    async def join(self, metrics: HttpMetrics, ready: Callable[[], bool]) -> None:
        """Answer for this process from now on, and answer with the sums of all."""
        hear = {METRICS: lambda _: told(metrics.all.registry), LOAD: lambda _: metrics.num_running}
        self._line = await open_line(self._line_end, hear)
        self._line.start()
        self._ready = ready
        metrics.siblings = self

    def begin(self, make_protocol: Callable[[], asyncio.Protocol], connections: Sized) -> None:
        """Take connections; ``connections`` are those that are open at any time."""
        self._connections = connections
        self._arrivals = Arrivals(self._channel, make_protocol)
        self._beating = spawn(self._beat(), "beat")

    async def end(self) -> None:
        """Ask for no more connections, and take the last ones."""
        if self._arrivals is None or self._line is None:
            return
        self._line.tell(LEAVING, None)
        try:
            await asyncio.wait_for(self._arrivals.over.wait(), LAST_S)
        except TimeoutError:
            self._arrivals.close()

    async def close(self) -> None:
        """Say nothing more."""
        if self._beating is not None:
            self._beating.cancel()
        if self._line is not None:
            await self._line.close()
        self._channel.close()

    async def metrics(self) -> bytes:
        """The page of all. Raises ``GatewayError``."""
        return str(await self._ask(METRICS)).encode()

    async def load(self) -> int:
        """Open requests of all. Raises ``GatewayError``."""
        return int(await self._ask(LOAD))

    async def _ask(self, what: str) -> Any:
        assert self._line is not None, "nobody answers before it has joined"
        try:
            return await self._line.ask(what, ANSWER_S)
        except LineBroken as error:
            raise GatewayError(
                503,
                f"The other processes of this gateway can't be asked ({error})",
                type="server_error",
                code="no_answer",
                retry_after_s=1,
            ) from error

    async def _beat(self) -> None:
        assert self._line is not None
        while True:
            num_taken = 0 if self._arrivals is None else self._arrivals.num_taken
            self._line.tell(STANDING, [num_taken, len(self._connections), self._ready()])
            await asyncio.sleep(BEAT_S)


def take_seat(argv: Sequence[str]) -> tuple[GatewaySettings, Seat]:
    """A worker's first act: who it is stands in its command line for people, all else comes over the channel."""
    parser = argparse.ArgumentParser(prog="kvferry gateway-worker")
    parser.add_argument("--channel-fd", type=int, required=True)
    parser.add_argument("--line-fd", type=int, required=True)
    parser.add_argument("--gateway-id", required=True)
    given = parser.parse_args(argv)
    channel, line = socket.socket(fileno=given.channel_fd), socket.socket(fileno=given.line_fd)
    briefing = pickle.loads(channel.recv(MAX_BRIEFING_BYTES))
    assert isinstance(briefing, Briefing)
    return briefing.settings, Seat(briefing, channel, line)
