"""Where a Redis or Valkey server is, with the credentials kept apart, and whether the line must be encrypted."""

from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from runtime import units
from runtime.tls import NO_TLS_FILES, TlsFiles

DEFAULT_PORT = 6379
MAX_DB = 1 << 16
_SHAPE = (
    "the address must look like redis://[user:password@]host[:port][/db] or rediss://…, "
    "with / : @ in a password as %2F %3A %40"
)


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """One server, with the credentials kept apart."""

    host: str
    port: int
    db: int
    user: str | None
    password: str | None = field(repr=False)
    encrypted: bool
    """Nothing is sent over a line that isn't."""

    @classmethod
    def parse(cls, url: str, tls: TlsFiles = NO_TLS_FILES) -> "RedisAddress":
        """Read `redis://` or `rediss://`; with the latter, or any file in `tls`, the line is encrypted.

        Options after a `?` are refused: redis-py would take one that switches verification off.

        Raises:
            ValueError: it is no such address. The message repeats nothing of `url`.

        """
        try:
            part = urlsplit(url)
            host, port, db = part.hostname, part.port or DEFAULT_PORT, _database(part)
        except ValueError:
            raise ValueError(_SHAPE) from None
        if part.scheme not in ("redis", "rediss") or not host or part.query or part.fragment:
            raise ValueError(_SHAPE)
        user = unquote(part.username) if part.username else None
        password = unquote(part.password) if part.password else None
        return cls(host, port, db, user, password, tls.given or part.scheme == "rediss")


def checked_url(text: str) -> str:
    """Take the address of a Redis server, or nothing. Raises `ValueError` without repeating it."""
    text = units.text(text)
    if text:
        RedisAddress.parse(text)
    return text


def _database(part: SplitResult) -> int:
    number = int(part.path.strip("/") or 0)
    if not 0 <= number < MAX_DB:
        raise ValueError
    return number
