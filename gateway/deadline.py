"""How long a whole request may take: what its client says, within what the server allows."""

import time
from collections.abc import Iterable

from gateway.body import invalid
from gateway.errors import from_code
from protocol.errors import Code

HEADER = "x-kvferry-deadline-ms"
MAX_DIGITS = 12
"""Thirty years: more is a mistake."""


def is_hurried(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the client set a deadline."""
    return any(name == HEADER.encode() for name, _ in headers)


def deadline_ms(headers: Iterable[tuple[bytes, bytes]], server_s: float) -> int:
    """Milliseconds from the request's arrival, 0 for no deadline: the shorter one of header and server's default.

    Raises ``GatewayError`` (400) for a header that isn't one whole number above 0.
    """
    given = [value for name, value in headers if name == HEADER.encode()]
    server_ms = int(server_s * 1000)
    if not given:
        return server_ms
    if len(given) > 1 or not given[0].isdigit() or len(given[0]) > MAX_DIGITS or int(given[0]) < 1:
        raise invalid(HEADER, "one whole number of milliseconds, 1 or more")
    asked = int(given[0])
    return min(asked, server_ms) if server_ms else asked


def left_ms(within_ms: int, started: float) -> int:
    """Of a deadline of ``within_ms`` from ``started`` (monotonic seconds) on, 0 if there is none.

    Raises ``GatewayError`` (504) if it has passed already.
    """
    if not within_ms:
        return 0
    left = within_ms - int((time.monotonic() - started) * 1000)
    if left < 1:
        raise from_code(Code.DEADLINE, f"the deadline of {within_ms} ms passed before a worker was asked")
    return left
