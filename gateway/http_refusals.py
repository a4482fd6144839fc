"""Answers to clients whose connection ends here, before any app has a request of theirs."""

import json
from http import HTTPStatus

from gateway.errors import GatewayError


def too_many() -> GatewayError:
    """Return the 503."""
    return GatewayError(
        503,
        "This gateway has too many open connections",
        type="server_error",
        code="too_many_connections",
        retry_after_s=1,
    )


def whole_answer(error: GatewayError) -> bytes:
    """Return a whole response. Written as it is: the connection ends with it, in whatever state its parser is."""
    body = json.dumps(error.body()).encode()
    again = "" if error.retry_after_s is None else f"retry-after: {error.retry_after_s}\r\n"
    head = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{again}connection: close\r\n\r\n"
    )
    return head.encode() + body
