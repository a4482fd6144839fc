"""What a request's head may be: not too large, and clear about where its body ends."""

from starlette.types import Scope

from gateway.errors import GatewayError
from gateway.http_settings import HttpSettings

BYTES_PER_HEADER = 4
"""Colon, space and line end; each header counts with them, so that empty ones aren't free."""


def check_framing(scope: Scope, settings: HttpSettings) -> None:
    """Raise ``GatewayError``: 431 for a head beyond the limit, 400 for a length beside chunks.

    The server reads the chunks then, a proxy before it may have counted; what one takes for the end of a
    body the other takes for a second request, of whoever the attacker likes.
    """
    size = len(scope.get("raw_path", b"")) + len(scope.get("query_string", b""))
    size += sum(len(name) + len(value) + BYTES_PER_HEADER for name, value in scope["headers"])
    if size > settings.max_header_bytes:
        raise too_large(settings)
    names = {name for name, _ in scope["headers"]}
    if {b"content-length", b"transfer-encoding"} <= names:
        raise invalid_http(400, "Send Content-Length or Transfer-Encoding, not both")


def too_large(settings: HttpSettings) -> GatewayError:
    """The 431."""
    return GatewayError(
        431,
        f"Request line and headers are larger than {settings.max_header_bytes} bytes",
        code="headers_too_large",
    )


def invalid_http(status: int, message: str) -> GatewayError:
    """A request that isn't one, or might be two."""
    return GatewayError(status, message, code="invalid_http")
