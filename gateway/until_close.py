"""Answers to clients of HTTP/1.0."""

from starlette.types import Message
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class UntilClose:
    """``send`` for a client that knows no chunks: a body of unknown length ends with the connection.

    The server would send chunks, which RFC 9112, 6.1 forbids towards HTTP/1.0.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        """``cycle`` doesn't keep its connection open: it is of HTTP/1.0."""
        self._cycle = cycle
        self._send = cycle.send
        self._is_open_ended = False

    async def __call__(self, message: Message) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            self._is_open_ended = all(name.lower() != b"content-length" for name, _ in message["headers"])
            if self._is_open_ended:
                self._cycle.chunked_encoding = False
        elif self._is_open_ended:
            self._cycle.expected_content_length = len(message.get("body", b""))  # each part is all there is to come
        await self._send(message)  # type: ignore[arg-type]
