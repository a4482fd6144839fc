"""The key that a request brings."""

from collections.abc import Iterable

from starlette.types import Scope

from gateway.anthropic_errors import is_anthropic

Headers = Iterable[tuple[bytes, bytes]]


def bearer_key(headers: Headers) -> bytes | None:
    """Return what follows ``Bearer``, in any case, in the only Authorization header; None if there isn't that."""
    given = [value for name, value in headers if name == b"authorization"]
    if len(given) != 1:
        return None
    scheme, _, key = given[0].partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else None


def given_key(scope: Scope) -> bytes | None:
    """Return the bearer key, or on Anthropic's routes what the only x-api-key header says; None if there is neither.

    With an Authorization header the other isn't looked at.
    """
    headers = scope["headers"]
    if not is_anthropic(scope["path"]) or any(name == b"authorization" for name, _ in headers):
        return bearer_key(headers)
    given: list[bytes] = [value for name, value in headers if name == b"x-api-key"]
    return given[0].strip() if len(given) == 1 else None
