"""Where responses are kept for a while, for all gateways: in Redis or Valkey."""

import asyncio
import time

import redis.asyncio
from redis.exceptions import RedisError

from gateway.responses_api.store import DEFAULT_MAX_BYTES, DEFAULT_TTL_S, LEASE_S, StoreAway
from runtime.redis_client import RedisScript

PREFIX = "kvferry:responses:"
CALL_TIMEOUT_S = 1.0
"""That a call takes at most, the wait for its turn included."""

RETRY_S = 1.0
"""For so long after a failure no call asks the server: requests don't queue before one that is away."""

MAX_CALLS = 4
"""Calls on their way at once, each on a connection of its own."""

_EVICTED_AT_ONCE = 256
"""Ended entries that one call clears away: it holds up the server's other clients for so long."""

_SCRIPT = RedisScript(
    f"""
local entries, ends, leases, totals = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local op, key, span_ms, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function total() return tonumber(redis.call('HMGET', totals, 'bytes')[1]) or 0 end

local function forget(name)
  local size = redis.call('HSTRLEN', entries, name)
  redis.call('HDEL', entries, name)
  redis.call('ZREM', ends, name)
  redis.call('HSET', totals, 'bytes', math.max(total() - size, 0))
end

local function oldest(limit, count) return redis.call('ZRANGEBYSCORE', ends, '-inf', limit, 'LIMIT', 0, count) end

local function lives(index) return (tonumber(redis.call('ZSCORE', index, key)) or 0) > now end

if op == 'put' then
  local entry = ARGV[5]
  forget(key)
  for _, name in ipairs(oldest(now, {_EVICTED_AT_ONCE})) do forget(name) end
  while total() + #entry > most do
    local found = oldest('+inf', 1)
    if #found == 0 then redis.call('HSET', totals, 'bytes', 0) break end
    forget(found[1])
  end
  redis.call('HSET', entries, key, entry)
  redis.call('ZADD', ends, now + span_ms, key)
  redis.call('HSET', totals, 'bytes', total() + #entry)
  for index = 1, 4 do redis.call('PEXPIRE', KEYS[index], span_ms + 60000) end
  return 1
elseif op == 'get' then
  if lives(ends) then return redis.call('HMGET', entries, key)[1] end
  return false
elseif op == 'drop' then
  local found = lives(ends) and 1 or 0
  forget(key)
  redis.call('ZREM', leases, key)
  return found
elseif op == 'end' then
  local found = lives(leases) and 1 or 0
  redis.call('ZREM', leases, key)
  return found
elseif op == 'is_leased' then
  return lives(leases) and 1 or 0
end
if op == 'renew' and not lives(leases) then return 0 end
redis.call('ZREMRANGEBYSCORE', leases, '-inf', now)
redis.call('ZADD', leases, now + span_ms, key)
redis.call('PEXPIRE', leases, most)
return 1
"""
)
"""``span_ms`` is how long an entry or a lease lasts, ``most`` bytes of all entries, or how long the leases' key stays.
Entries are a hash, ends and leases sorted sets by their end on the server's clock, all of it gone after ``span_ms`` in
which nothing was kept."""


class RedisStore:
    """A ``ResponseStore``."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        ttl_s: float = DEFAULT_TTL_S,
        max_bytes: int = DEFAULT_MAX_BYTES,
        prefix: str = PREFIX,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        """Own ``client``; nothing is connected yet."""
        self._client = client
        self._ttl_ms = int(ttl_s * 1000)
        self._max_bytes = max_bytes
        # in braces: all keys live on one node of a cluster
        self._keys = [f"{prefix}{{all}}:{name}" for name in ("entries", "ends", "leases", "totals")]
        self._timeout_s = timeout_s
        self._calls = asyncio.Semaphore(MAX_CALLS)
        self._away_until = 0.0

    async def put(self, key: str, entry: bytes) -> None:
        """See ``ResponseStore``."""
        await self._run("put", key, self._ttl_ms, self._max_bytes, entry)

    async def get(self, key: str) -> bytes | None:
        """See ``ResponseStore``."""
        found = await self._run("get", key)
        return found if isinstance(found, bytes) else None

    async def drop(self, key: str) -> bool:
        """See ``ResponseStore``."""
        return await self._run("drop", key) == 1

    async def lease(self, key: str) -> None:
        """See ``ResponseStore``."""
        await self._run("lease", key, *self._lease_ms)

    async def renew(self, key: str) -> bool:
        """See ``ResponseStore``."""
        return await self._run("renew", key, *self._lease_ms) == 1

    async def end(self, key: str) -> bool:
        """See ``ResponseStore``."""
        return await self._run("end", key) == 1

    async def is_leased(self, key: str) -> bool:
        """See ``ResponseStore``."""
        return await self._run("is_leased", key) == 1

    async def close(self) -> None:
        """See ``ResponseStore``."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._client.aclose()
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreAway(_told(error)) from error

    @property
    def _lease_ms(self) -> tuple[int, int]:
        return int(LEASE_S * 1000), max(self._ttl_ms, int(LEASE_S * 1000))

    async def _run(self, op: str, key: str, span_ms: int = 0, most: int = 0, entry: bytes = b"") -> object:
        if time.monotonic() < self._away_until:
            raise StoreAway("it didn't answer a moment ago")
        try:
            async with asyncio.timeout(self._timeout_s), self._calls:
                return await _SCRIPT.run(self._client, self._keys, [op, key, str(span_ms), str(most), entry])
        except (RedisError, OSError, TimeoutError) as error:
            self._away_until = time.monotonic() + RETRY_S
            raise StoreAway(_told(error)) from error


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__
