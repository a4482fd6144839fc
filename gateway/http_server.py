"""The gateway's HTTP server: answers until it is told to end, and then until what is open has ended."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator, Sized
from typing import Protocol

import uvicorn
from starlette.types import ASGIApp

from gateway.http_config import BoundedConfig, OnRefused
from gateway.http_protocol import BoundedProtocol
from gateway.http_settings import HttpSettings

FLUSH_S = 5
"""How long answers that are done may still be on their way to slow readers when the gateway ends."""


class Entrance(Protocol):
    """Where connections come from that another process has accepted."""

    def begin(self, make_protocol: Callable[[], asyncio.Protocol], connections: Sized) -> None:
        """Serve each by a protocol of its own; ``connections`` are those that are open, at any time."""

    async def end(self) -> None:
        """Take the last ones; none comes any more."""


class _Server(uvicorn.Server):
    """Leaves signals to ``run_service``."""

    def __init__(self, config: BoundedConfig, entrance: Entrance | None) -> None:
        super().__init__(config)
        self._entrance = entrance

    def make_protocol(self) -> asyncio.Protocol:
        """What serves one connection."""
        protocol: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve."""
        await super().startup(sockets)
        if self._entrance is not None:
            self._entrance.begin(self.make_protocol, self.server_state.connections)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


async def serve_http(
    app: ASGIApp,
    entrance: socket.socket | Entrance,
    stop: asyncio.Event,
    drain: Callable[[], Awaitable[None]],
    settings: HttpSettings | None = None,
    on_refused: OnRefused = lambda reason: None,
) -> None:
    """Serve until ``stop`` is set; then wait for ``drain()``, answering on, and close.

    ``entrance`` is a listening socket, or brings connections that another process has accepted.
    Whoever comes while it drains hears from the app that nothing new is taken, not a closed port.
    ``settings`` bound its connections; ``on_refused`` counts those that were ended for their own fault.
    """
    config = BoundedConfig(
        app,
        settings or HttpSettings(),
        on_refused,
        http=BoundedProtocol,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=FLUSH_S,
        proxy_headers=False,
        server_header=False,
    )
    listeners, handing = ([entrance], None) if isinstance(entrance, socket.socket) else ([], entrance)
    server = _Server(config, handing)
    serving = asyncio.ensure_future(server.serve(sockets=listeners))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    await drain()
    if handing is not None:
        await handing.end()
    server.should_exit = True
    await serving
