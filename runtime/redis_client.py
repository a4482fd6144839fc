"""A client of Redis or Valkey, whose line is verified when it is encrypted."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import redis.asyncio
from redis.asyncio.connection import SSLConnection
from redis.exceptions import NoScriptError

from runtime.redis_address import RedisAddress
from runtime.tls import NO_TLS_FILES, TlsFiles


def open_redis(url: str, timeout_s: float, tls: TlsFiles = NO_TLS_FILES) -> redis.asyncio.Redis:
    """Return a client that tries once and waits `timeout_s` at most; nothing is connected yet.

    Raises:
        ValueError: `url` is no address of a Redis server.

    """
    address = RedisAddress.parse(url, tls)
    options: dict[str, Any] = {
        "host": address.host,
        "port": address.port,
        "db": address.db,
        "username": address.user,
        "password": address.password,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": None,
    }
    if not address.encrypted:
        return redis.asyncio.Redis(**options)
    pool = redis.asyncio.ConnectionPool(connection_class=_VerifiedConnection, tls=tls, **options)
    return redis.asyncio.Redis.from_pool(pool)


class _VerifiedConnection(SSLConnection):
    """An encrypted line that trusts the given CA alone; redis-py would add it to the system's."""

    def __init__(self, *, tls: TlsFiles, **options: Any) -> None:
        super().__init__(**options)
        self._tls = tls

    def _connection_arguments(self) -> Mapping[str, Any]:
        return {**super()._connection_arguments(), "ssl": self._tls.context()}


class RedisScript:
    """A script that runs on the server, sent by its digest where that knows it already."""

    def __init__(self, text: str) -> None:
        """Needs no more than EVAL and EVALSHA."""
        self._text = text
        self._digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    async def run(self, client: redis.asyncio.Redis, keys: Sequence[str], words: Sequence[str | bytes]) -> object:
        """What it returns. Raises what the client does."""
        try:
            return await client.evalsha(self._digest, len(keys), *keys, *words)
        except NoScriptError:
            return await client.eval(self._text, len(keys), *keys, *words)
