"""The key that a request brings."""

from collections.abc import Iterable

Headers = Iterable[tuple[bytes, bytes]]


def bearer_key(headers: Headers) -> bytes | None:
    """Return what follows ``Bearer``, in any case, in the only Authorization header; None if there isn't that."""
    given = [value for name, value in headers if name == b"authorization"]
    if len(given) != 1:
        return None
    scheme, _, key = given[0].partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else None
