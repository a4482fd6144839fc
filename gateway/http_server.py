"""The gateway's HTTP server: answers until it is told to end, and then until what is open has ended."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from gateway.http_protocol import BoundedConfig, OnRefused
from gateway.http_settings import HttpSettings

FLUSH_S = 5
"""How long answers that are done may still be on their way to slow readers when the gateway ends."""


class _Server(uvicorn.Server):
    """Leaves signals to ``run_service``."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


async def serve_http(
    app: ASGIApp,
    listener: socket.socket,
    stop: asyncio.Event,
    drain: Callable[[], Awaitable[None]],
    settings: HttpSettings | None = None,
    on_refused: OnRefused = lambda reason: None,
) -> None:
    """Serve on ``listener`` until ``stop`` is set; then wait for ``drain()``, answering on, and close.

    Whoever comes while it drains hears from the app that nothing new is taken, not a closed port.
    ``settings`` bound its connections; ``on_refused`` counts those that were ended for their own fault.
    """
    config = BoundedConfig(
        app,
        settings or HttpSettings(),
        on_refused,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=FLUSH_S,
        proxy_headers=False,
        server_header=False,
    )
    server = _Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    await drain()
    server.should_exit = True
    await serving
