"""Bodies of other routes that become chats: errors under the names of their own fields."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from gateway.errors import GatewayError


def unsupported(where: str, what: str) -> GatewayError:
    """A 400 that names what this server doesn't do at a place of the body."""
    return GatewayError(
        400, f"{where}: {what} aren't supported by this server", code="unsupported_parameter", param=where
    )


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Let errors about fields of a chat name those that they came from; ``names`` go by the beginning of a path."""
    try:
        yield
    except GatewayError as error:
        old = error.param or ""
        name = next((each for each in names if old == each or old.startswith(f"{each}.")), None)
        if name is None:
            raise
        new = names[name] + old.removeprefix(name)
        message = new + error.message.removeprefix(old) if error.message.startswith(old) else error.message
        raise GatewayError(
            error.status,
            message,
            type=error.type,
            code=error.code,
            param=new,
            retry_after_s=error.retry_after_s,
        ) from error
