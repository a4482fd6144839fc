"""A copy of the roster in Redis or Valkey, for newcomers; nothing depends on it being there."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import redis.asyncio
from redis.exceptions import RedisError

from runtime.logs import get_logger
from runtime.redis_client import open_redis
from runtime.tls import NO_TLS_FILES, TlsFiles

T = TypeVar("T")
log = get_logger("roster_store")

KEY_PREFIX = "kvferry:roster:"
MAX_ENTRIES = 4096
"""Entries that `all` returns at most; more workers than this don't share one bus."""

CALL_TIMEOUT_S = 1.0
"""Seconds that any call takes at most, whatever the server does."""

SCAN_COUNT = 512
"""Keys looked at per round trip."""


class RosterStore:
    """Remembers what workers last said of themselves.

    No method raises or takes more than `CALL_TIMEOUT_S`: with the server away, `put` and `remove`
    do nothing and `all` is empty. Failures are logged every ten seconds at most.
    """

    def __init__(self, redis_url: str | None, tls: TlsFiles = NO_TLS_FILES) -> None:
        """Name the server, as `runtime.redis_client` reads it; nothing is connected yet.

        Without one the store stays empty.

        Raises:
            ValueError: `redis_url` is no such address.

        """
        self._client = None if redis_url is None else open_redis(redis_url, CALL_TIMEOUT_S, tls)

    async def put(self, worker_id: str, payload: bytes, ttl_s: float) -> None:
        """Keep `payload` for `ttl_s` seconds, in place of the worker's former one."""
        if self._client is None:
            return
        ttl_ms = max(1, int(ttl_s * 1000))
        await self._bounded("put", self._client.set(KEY_PREFIX + worker_id, payload, px=ttl_ms))

    async def all(self) -> list[bytes]:
        """Return what is kept now, in no order, `MAX_ENTRIES` at most."""
        if self._client is None:
            return []
        return await self._bounded("all", _read_all(self._client)) or []

    async def remove(self, worker_id: str) -> None:
        """Forget the worker."""
        if self._client is None:
            return
        await self._bounded("remove", self._client.delete(KEY_PREFIX + worker_id))

    async def close(self) -> None:
        """End the connection; idempotent."""
        if self._client is None:
            return
        await self._bounded("close", self._client.aclose())

    async def _bounded(self, call: str, work: Awaitable[T]) -> T | None:
        """Return what `work` does, or None after a failure, which is logged."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await work
        except (RedisError, OSError, TimeoutError) as error:
            log.every(10.0, "failed").warning(
                "roster_store_failed", call=call, error=str(error) or type(error).__name__
            )
            return None


async def _read_all(client: redis.asyncio.Redis) -> list[bytes]:
    keys: set[bytes] = set()
    async for key in client.scan_iter(match=KEY_PREFIX + "*", count=SCAN_COUNT):
        keys.add(key)
        if len(keys) >= MAX_ENTRIES:
            break
    values = await client.mget(sorted(keys)) if keys else []
    return [value for value in values if isinstance(value, bytes)]


class MemoryRosterStore(RosterStore):
    """The in-process twin."""

    def __init__(self) -> None:
        super().__init__(None)
        self._entries: dict[str, tuple[float, bytes]] = {}

    async def put(self, worker_id: str, payload: bytes, ttl_s: float) -> None:
        """See `RosterStore`."""
        self._entries[worker_id] = (_now() + ttl_s, payload)

    async def all(self) -> list[bytes]:
        """See `RosterStore`."""
        now = _now()
        self._entries = {key: each for key, each in self._entries.items() if each[0] > now}
        return [payload for _, payload in self._entries.values()]

    async def remove(self, worker_id: str) -> None:
        """See `RosterStore`."""
        self._entries.pop(worker_id, None)

    async def close(self) -> None:
        """See `RosterStore`."""


def _now() -> float:
    return asyncio.get_running_loop().time()
