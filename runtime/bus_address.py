"""Where the bus is: server addresses with the credentials kept apart, and whether the line must be encrypted."""

from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from runtime import units
from runtime.tls import NO_TLS_FILES, TlsFiles

DEFAULT_PORT = 4222
_SHAPE = (
    "the bus address must look like nats://[user:password@]host[:port] or tls://…, "
    "with / : @ in a password as %2F %3A %40"
)


@dataclass(frozen=True, slots=True)
class BusAddress:
    """Where the servers are, with the credentials kept apart so that they are never logged."""

    servers: tuple[str, ...]
    user: str | None
    password: str | None = field(repr=False)
    token: str | None = field(repr=False)
    encrypted: bool = False
    """Nothing is sent over a line that isn't."""

    tls: TlsFiles = NO_TLS_FILES

    @classmethod
    def parse(cls, url: str, tls: TlsFiles = NO_TLS_FILES) -> "BusAddress":
        """Read `nats://[user:password@|token@]host[:port]`, several separated by commas.

        The credentials of the first server count for all; percent escapes in them are resolved.
        With `tls://` for any server, or with any file in `tls`, all lines are encrypted.

        Raises:
            ValueError: a scheme other than nats or tls, no host, or a port that isn't one. The message
                repeats nothing of `url`, which may have a password in it.

        """
        try:
            parts = [urlsplit(each if "://" in each else f"nats://{each}") for each in url.split(",")]
            encrypted = tls.given or any(part.scheme == "tls" for part in parts)
            servers = tuple(_bare_url(part, encrypted=encrypted) for part in parts)
        except ValueError:
            raise ValueError(_SHAPE) from None
        user, password = parts[0].username, parts[0].password
        if user is not None and password is not None:
            return cls(servers, unquote(user), unquote(password), None, encrypted, tls)
        return cls(servers, None, None, None if user is None else unquote(user), encrypted, tls)

    def __str__(self) -> str:
        return ",".join(self.servers)


def checked_url(text: str) -> str:
    """Take an address of NATS servers, or nothing. Raises `ValueError` without repeating it."""
    text = units.text(text)
    if text:
        BusAddress.parse(text)
    return text


def _bare_url(part: SplitResult, *, encrypted: bool) -> str:
    if part.scheme not in ("nats", "tls") or not part.hostname:
        raise ValueError
    host = f"[{part.hostname}]" if ":" in part.hostname else part.hostname
    return f"{'tls' if encrypted else 'nats'}://{host}:{part.port or DEFAULT_PORT}"
