"""One HTTP connection, within bounds: what a client may leave undone, and for how long.

uvicorn bounds the size of an unfinished head and the pause between two requests. The rest is here: the
number of connections, the time that a head takes, a body that nobody reads, an answer that its client
doesn't take. Refusals have the shape of all other errors.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.server import ServerState

from gateway.errors import GatewayError
from gateway.framing import invalid_http, too_large
from gateway.http_settings import HttpSettings
from runtime.logs import get_logger

LOG_S = 10.0
LINGER_S = 1.0
"""How long a client that was refused may still send: closed at once, it might never see the answer."""

APP_FIRST = 1.25
"""The app ends a stream that isn't read after ``write_timeout_s``, and says why; this is for what it can't end."""

_TOO_LARGE, _BAD = 431, 400

log = get_logger("gateway.connection")

OnRefused = Callable[[str], None]
"""Called with the reason when a connection is ended for its client's fault."""

_quiet = logging.getLogger("uvicorn.error.connection")
_quiet.setLevel(logging.ERROR)  # a line for each bad request would let anybody fill the disk


class BoundedConfig(uvicorn.Config):
    """The server's configuration, with our bounds for each of its connections."""

    def __init__(self, app: Any, settings: HttpSettings, on_refused: OnRefused, **options: Any) -> None:
        super().__init__(
            app,
            http=BoundedProtocol,
            ws="none",
            h11_max_incomplete_event_size=settings.max_header_bytes,
            **options,
        )
        self.settings = settings
        self.on_refused = on_refused


class BoundedProtocol(H11Protocol):
    """A connection waits for its client under one deadline at a time, ``_limit``, unless the app has a request."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        assert isinstance(config, BoundedConfig)
        self._bounds = config.settings
        self._on_refused = config.on_refused
        self._limit: asyncio.TimerHandle | None = None
        self._awaits_head = False
        self._watched = False
        self._refused = False
        self.logger = _quiet

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse it if there are too many; else its first head has so much time."""
        super().connection_made(transport)
        if len(self.connections) <= self._bounds.max_connections:
            self._await_head()
            return
        self._note("too_many_connections")
        self._refused = True
        transport.write(_answer(_too_many()))
        transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """No deadline any more."""
        self._unlimited()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take it; a head that has begun is under its deadline until it is there."""
        if self._refused:
            return
        super().data_received(data)
        if self._refused or self.transport.is_closing():
            return
        if self.conn.their_state is h11.IDLE:
            if not self._awaits_head:
                self._await_head()
        elif self.conn.our_state is not h11.DONE:
            self._unlimited()  # the app has the request now, and deadlines of its own

    def on_response_complete(self) -> None:
        """The client must take the answer, and send the rest of a body that nobody reads, in time."""
        super().on_response_complete()
        if self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY:
            self._limit_to(self._bounds.header_timeout_s, self._body_is_late)
        self._watch_reader()

    def pause_writing(self) -> None:
        """More waits for the client than it takes."""
        super().pause_writing()
        self._watch_reader()

    def send_400_response(self, msg: str) -> None:
        """Say in our shape what is wrong with the request that can't be read."""
        fault = sys.exception()
        status = fault.error_status_hint if isinstance(fault, h11.RemoteProtocolError) else _BAD
        if status == _TOO_LARGE:
            self._refuse("headers_too_large", too_large(self._bounds))
        else:
            self._refuse("invalid_http", invalid_http(status, "This is no HTTP request that is taken here"))

    def shutdown(self) -> None:
        """The server ends."""
        if self._refused:
            self.transport.abort()
        else:
            super().shutdown()

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore the wish, as HTTP allows."""

    def _await_head(self) -> None:
        self._limit_to(self._bounds.header_timeout_s, self._head_is_late)
        self._awaits_head = True

    def _head_is_late(self) -> None:
        if self.conn.trailing_data[0]:
            late = GatewayError(408, "Request line and headers took too long to arrive", code="request_timeout")
            self._refuse("slow_head", late)
        else:
            self._note("idle")
            self.transport.close()

    def _body_is_late(self) -> None:
        self._note("slow_body")
        self.transport.close()

    def _refuse(self, reason: str, error: GatewayError) -> None:
        """Answer, if that can still be done, and end the connection."""
        self._note(reason)
        self._unset_keepalive_if_required()
        self._refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        self.flow.resume_reading()
        self.transport.write(_answer(error))
        self.transport.write_eof()
        self._limit_to(LINGER_S, self.transport.abort)

    def _watch_reader(self) -> None:
        """Cut the client off when it takes nothing of what is ready for it."""
        waiting = self.transport.get_write_buffer_size()
        if waiting and not self._watched:
            self._watched = True
            self.loop.call_later(self._bounds.write_timeout_s * APP_FIRST, self._look_again, waiting)

    def _look_again(self, num_waited: int) -> None:
        self._watched = False
        if self.transport.get_write_buffer_size() == num_waited:
            self._note("slow_reader")
            self.transport.abort()
        else:
            self._watch_reader()

    def _note(self, reason: str) -> None:
        self._on_refused(reason)
        if reason != "idle":
            log.every(LOG_S, reason).warning("connection_refused", reason=reason)

    def _limit_to(self, seconds: float, late: Callable[[], None]) -> None:
        self._unlimited()
        self._limit = self.loop.call_later(seconds, late)

    def _unlimited(self) -> None:
        self._awaits_head = False
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None


def _too_many() -> GatewayError:
    return GatewayError(
        503,
        "This gateway has too many open connections",
        type="server_error",
        code="too_many_connections",
        retry_after_s=1,
    )


def _answer(error: GatewayError) -> bytes:
    """A whole response. Written as it is: the connection ends with it, in whatever state its parser is."""
    body = json.dumps(error.body()).encode()
    again = "" if error.retry_after_s is None else f"retry-after: {error.retry_after_s}\r\n"
    head = (
        f"HTTP/1.1 {error.status} {STATUS_PHRASES.get(error.status, b'').decode()}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{again}connection: close\r\n\r\n"
    )
    return head.encode() + body
