"""What a request's head must be for its end, and its body's, to be beyond doubt."""

from collections.abc import Sequence

from gateway.errors import GatewayError
from gateway.framing import invalid_http

_NO_REQUEST = "This is no HTTP request that is taken here"


def head_fault(version: str, headers: Sequence[tuple[bytes, bytes]]) -> GatewayError | None:
    """Say what is wrong with a whole head: 400, or 501 for a coding of its body that isn't read here.

    Which length a body has next to chunks, and how large a head may be, is judged by ``check_framing``.
    """
    if version not in ("1.0", "1.1"):
        return invalid_http(400, _NO_REQUEST)
    codings = _values(b"transfer-encoding", headers)
    if codings and (len(codings) > 1 or codings[0].lower() != b"chunked"):
        return _unknown_coding()
    if codings and version == "1.0":
        return invalid_http(400, "HTTP/1.0 knows no Transfer-Encoding")
    num_hosts = len(_values(b"host", headers))
    if num_hosts > 1 or (version == "1.1" and not num_hosts):
        return invalid_http(400, "Send one Host header")
    return None


def body_framing(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the header that says where a body ends, as it stands in a head; empty if there is no body."""
    for name in (b"transfer-encoding", b"content-length"):
        for value in _values(name, headers):
            if value != b"0":
                return b"%s: %s\r\n" % (name, value)
    return b""


def syntax_fault(headers: Sequence[tuple[bytes, bytes]]) -> GatewayError:
    """Say what is wrong with bytes that the parser can't read, after these headers."""
    codings = _values(b"transfer-encoding", headers)
    if any(coding.lower() != b"chunked" for coding in codings):
        return _unknown_coding()
    return invalid_http(400, _NO_REQUEST)


def _unknown_coding() -> GatewayError:
    return invalid_http(501, "The body's Transfer-Encoding isn't supported; send it as it is, or chunked")


def _values(name: bytes, headers: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    return [value for each, value in headers if each == name]
