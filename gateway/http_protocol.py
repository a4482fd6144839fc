"""One HTTP connection, within bounds: what a client may leave undone, and for how long.

uvicorn bounds the size of an unfinished head and the pause between two requests. The rest is here: the
number of connections, the time that a head takes, a body that nobody reads, an answer that its client
doesn't take. Refusals have the shape of all other errors.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import httptools
import uvicorn
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from gateway.errors import GatewayError
from gateway.framing import too_large
from gateway.http_config import BoundedConfig
from gateway.http_head import syntax_fault
from gateway.http_messages import MessageProtocol
from gateway.http_refusals import too_many, whole_answer
from runtime.logs import get_logger

LOG_S = 10.0
LINGER_S = 1.0
"""How long a client that was refused may still send: closed at once, it might never see the answer."""

APP_FIRST = 1.25
"""The app ends a stream that isn't read after ``write_timeout_s``, and says why; this is for what it can't end."""

log = get_logger("gateway.connection")

_quiet = logging.getLogger("uvicorn.error.connection")
_quiet.setLevel(logging.ERROR)  # a line for each bad request would let anybody fill the disk


class BoundedProtocol(MessageProtocol):
    """A connection waits for its client under one deadline at a time, ``_limit``, unless the app has a request.

    The parser reads ahead: ``cycle`` is the latest request that has a head, ``_running`` the one that is answered,
    those between them wait in ``pipeline``. What is wrong is told when all before it is answered, and ends the
    connection.
    """

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
        self._running: RequestResponseCycle | None = None
        self._awaits_head = False
        self._watched = False
        self._is_deaf = self._refused = False
        self.logger = _quiet

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse it if there are too many; else its first head has so much time."""
        super().connection_made(transport)
        if len(self.connections) <= self._bounds.max_connections:
            self._await_head()
            return
        self._note("too_many_connections")
        self._is_deaf = self._refused = True
        transport.write(whole_answer(too_many()))
        transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """No deadline any more, and nobody to answer."""
        self._unlimited()
        self._drop_all()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take it; a head that has begun is under its deadline until it is there."""
        if self._is_deaf:
            return
        self._unset_keepalive_if_required()
        num_begun, was_in_body, self._got_body = self._num_begun, self._in_body, False
        try:
            self.feed(data)
        except httptools.HttpParserError:
            self._wrong(*(self._fault or ("invalid_http", syntax_fault(self.headers or ()))))
            return
        is_same = self._num_begun == num_begun
        if (self._in_head and (is_same or not was_in_body)) or (self._in_body and is_same and not self._got_body):
            self._head_bytes += len(data)  # of a head, or of what stands between and behind chunks
            if self._head_bytes > self._bounds.max_header_bytes:
                self._wrong("headers_too_large", too_large(self._bounds))
                return
        if self.transport.is_closing():
            return
        if not self._in_body:
            if not self._awaits_head and (self._running is None or self._running.response_complete):
                self._await_head()
        elif not self.cycle.response_complete:
            self._unlimited()  # the app has the request now, and deadlines of its own

    def on_response_complete(self) -> None:
        """The client must take the answer, and send the rest of a body that nobody reads, in time."""
        super().on_response_complete()
        if self._running is not None and self._running.response_complete:
            if self._fault is not None and not self.transport.is_closing():
                self._refuse(*self._fault)
            elif self._in_body:
                self._limit_to(self._bounds.header_timeout_s, self._body_is_late)
            elif self._in_head:
                self._await_head()
        self._watch_reader()

    def pause_writing(self) -> None:
        """More waits for the client than it takes."""
        super().pause_writing()
        self._watch_reader()

    def shutdown(self) -> None:
        """The server ends."""
        if self._refused:
            self.transport.abort()
        else:
            super().shutdown()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        self._unlimited()
        super()._start_asgi_task(cycle, app)

    def _await_head(self) -> None:
        self._limit_to(self._bounds.header_timeout_s, self._head_is_late)
        self._awaits_head = True

    def _head_is_late(self) -> None:
        if self._in_head:
            late = GatewayError(408, "Request line and headers took too long to arrive", code="request_timeout")
            self._refuse("slow_head", late)
        else:
            self._note("idle")
            self.transport.close()

    def _body_is_late(self) -> None:
        self._note("slow_body")
        self.transport.close()

    def _wrong(self, reason: str, error: GatewayError) -> None:
        """Nothing more is read; what was asked for before is answered first."""
        self._is_deaf = True
        if self._in_body:  # the fault is in the latest request's
            self.pipeline = deque(waits for waits in self.pipeline if waits[0] is not self.cycle)
        is_before = self._running is not None and not self._running.response_complete
        if is_before and not (self._in_body and self._running is self.cycle):
            self._fault = (reason, error)
        else:
            self._refuse(reason, error)

    def _refuse(self, reason: str, error: GatewayError) -> None:
        """Answer, if that can still be done, and end the connection."""
        self._note(reason)
        self._unset_keepalive_if_required()
        self._is_deaf = self._refused = True
        has_begun = self._running is not None and self._running.response_started
        is_answered = self._running is None or self._running.response_complete
        self._drop_all()
        if has_begun and (not is_answered or (self._in_body and self._running is self.cycle)):
            self.transport.close()
            self._limit_to(LINGER_S, self.transport.abort)
            return
        self.flow.resume_reading()
        self.transport.write(whole_answer(error))
        self.transport.write_eof()
        self._limit_to(LINGER_S, self.transport.abort)

    def _drop_all(self) -> None:
        """Tell the app that nobody waits for an answer any more."""
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.waiting_for_100_continue = False
            self._running.message_event.set()
        self.pipeline.clear()

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
