"""Requests on one HTTP connection: where each has its head and its body, and what is none."""

import asyncio
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.errors import GatewayError
from gateway.framing import invalid_http
from gateway.http_head import body_framing, head_fault
from gateway.until_close import UntilClose

MAX_PIPELINED = 64
"""Requests that wait on one connection; the parser reads all that have come in one piece."""


class MessageProtocol(HttpToolsProtocol):
    """Hands requests to the app whose head is clear. Who feeds it bounds how much, and says what is wrong."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._num_begun = 0
        self._in_head = self._in_body = False
        self._head_bytes = 0
        self._goes_on = self._got_body = False
        self._fault: tuple[str, GatewayError] | None = None

    def feed(self, data: bytes) -> None:
        """Parse; raises ``httptools.HttpParserError``.

        A wish for another protocol is ignored, as HTTP allows: another parser goes on behind that head.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as pause:
            self.parser = httptools.HttpRequestParser(self)
            if self._in_body:
                self._goes_on = True
                self.parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n" % body_framing(self.headers))
                self._goes_on = False
            if rest := data[pause.args[0] :]:
                self.feed(rest)

    def on_message_begin(self) -> None:
        """A head begins."""
        if self._goes_on:
            return
        super().on_message_begin()
        self._num_begun += 1
        self._in_head, self._head_bytes = True, 0

    def on_url(self, url: bytes) -> None:
        """A part of its path."""
        if self._in_head:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of its headers. What stands behind a body is none: nobody has looked at it before."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A head is there: to the app with it, if it is clear where its body ends."""
        if self._goes_on:
            return
        error = head_fault(self.parser.get_http_version(), self.headers)
        if len(self.pipeline) >= MAX_PIPELINED:
            error = invalid_http(400, f"At most {MAX_PIPELINED} requests may wait on one connection")
        if error is not None:
            self._fault = ("invalid_http", error)
            raise ValueError("no request")  # which stops the parser
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            self.cycle.send = UntilClose(self.cycle)  # type: ignore[method-assign, assignment]
        self._in_head, self._in_body, self._head_bytes = False, True, 0

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        super().on_body(body)
        self._got_body, self._head_bytes = True, 0

    def on_message_complete(self) -> None:
        """A body has ended; but the parser takes none for that of a request that wishes for another protocol."""
        if not (self.parser.should_upgrade() and body_framing(self.headers)):
            super().on_message_complete()
            self._in_body = False
