"""Where keys stand, for all gateways: in Redis or Valkey, under the names of keys, never under keys."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import redis.asyncio
from redis.exceptions import RedisError

from gateway.limits import (
    LEASE_S,
    MAX_DEBT_MS,
    MINUTE_MS,
    NO_LIMITS,
    SLACK_MS,
    Limits,
    StoreAwayError,
    StoreBusyError,
    Verdict,
)
from runtime.redis_client import RedisScript

PREFIX = "kvferry:limits:"
CALL_TIMEOUT_S = 0.1
"""That a call takes at most, whatever the server does, once it has its turn; then the gateway judges alone.

It waits as long at most for its turn: a crowd of requests doesn't make a server away that answers well.
"""

WARM_TIMEOUT_S = 2.0
"""To open connections, which over TLS and a long line takes more than a call may."""

_TRIAL = "-"
"""No key has this name."""

MAX_CALLS = 4
"""Calls on their way at once, each on a connection of its own: some thousand calls a second."""

_SCRIPT = RedisScript(
    f"""
local minute, slack, most = {MINUTE_MS:.0f}, {SLACK_MS}, {MAX_DEBT_MS:.0f}
local op, request_ms, token_ms, concurrency = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local lease_ms, num_tokens = tonumber(ARGV[5]), tonumber(ARGV[6])
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local stored = redis.call('HMGET', KEYS[1], 'requests', 'tokens')
local requests = math.min(math.max((tonumber(stored[1]) or 0) - now, 0), most)
local tokens = math.min(math.max((tonumber(stored[2]) or 0) - now, 0), most)

local function verdict(refused_by, over)
  local function text(value) return string.format('%.3f', value) end
  return {{refused_by, text(over), text(requests), text(tokens)}}
end

local function save()
  redis.call('HSET', KEYS[1], 'requests', string.format('%.3f', now + requests),
    'tokens', string.format('%.3f', now + tokens))
  redis.call('PEXPIRE', KEYS[1], math.ceil(math.max(requests, tokens)) + 1000)
end

local function hold()
  for index = 7, #ARGV do redis.call('ZADD', KEYS[2], now + lease_ms, ARGV[index]) end
  redis.call('PEXPIRE', KEYS[2], math.ceil(lease_ms) + 1000)
end

if op == 'enter' then
  if concurrency > 0 then
    redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
    if redis.call('ZCARD', KEYS[2]) >= concurrency then return verdict('concurrency', 0) end
  end
  local over = requests + request_ms - minute
  if request_ms > 0 and over > slack then return verdict('requests', over) end
  over = tokens + token_ms - minute
  if token_ms > 0 and over > slack then return verdict('tokens', over) end
  if concurrency > 0 then hold() end
  requests = requests + request_ms
  save()
elseif op == 'take' then
  local over = tokens + num_tokens * token_ms - minute
  if over > slack then return verdict('tokens', over) end
  tokens = tokens + num_tokens * token_ms
  save()
elseif op == 'leave' then
  redis.call('ZREM', KEYS[2], ARGV[7])
  tokens = math.min(math.max(tokens - num_tokens * token_ms, 0), most)
  save()
elseif op == 'renew' then
  hold()
end
return verdict('', 0)
"""
)
"""The generic cell rate algorithm, on the server's clock. ``requests`` and ``tokens`` are debts in milliseconds;
stored is when they end. Slots are a sorted set of leases by their end."""


class RedisLimits:
    """A ``LimitStore``. No call waits for its turn, or takes then, longer than ``timeout_s``."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        lease_s: float = LEASE_S,
        prefix: str = PREFIX,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        """Own ``client``; nothing is connected yet."""
        self._timeout_s = timeout_s
        self._client = client
        self._lease_s = lease_s
        self._prefix = prefix
        self._calls = asyncio.Semaphore(MAX_CALLS)

    async def enter(self, name: str, limits: Limits, lease: str) -> Verdict:
        """See ``LimitStore``."""
        return await self._run("enter", name, limits, 0, [lease])

    async def take(self, name: str, limits: Limits, num_tokens: int) -> Verdict:
        """See ``LimitStore``."""
        return await self._run("take", name, limits, num_tokens, [])

    async def leave(self, name: str, limits: Limits, lease: str, num_tokens: int) -> Verdict:
        """See ``LimitStore``."""
        return await self._run("leave", name, limits, num_tokens, [lease])

    async def renew(self, held: Mapping[str, Collection[str]]) -> None:
        """See ``LimitStore``."""
        for name, leases in held.items():
            await self._run("renew", name, NO_LIMITS, 0, leases)

    async def warm(self) -> None:
        """See ``LimitStore``. All connections are opened, none is opened by a call unless one was lost.

        A server that answers, but lets us do too little, is away: else each request would find that out.
        """
        with _bounded_errors():
            async with asyncio.timeout(WARM_TIMEOUT_S):
                await asyncio.gather(*(self._client.ping() for _ in range(MAX_CALLS)))
        await self.renew({_TRIAL: (_TRIAL,)})
        await self.leave(_TRIAL, NO_LIMITS, _TRIAL, 0)

    async def close(self) -> None:
        """See ``LimitStore``."""
        with _bounded_errors():
            async with asyncio.timeout(WARM_TIMEOUT_S):
                await self._client.aclose()

    async def _run(self, op: str, name: str, limits: Limits, num_tokens: int, leases: Collection[str]) -> Verdict:
        # in braces: both keys of a name live on one node of a cluster
        keys = [f"{self._prefix}{{{name}}}:rate", f"{self._prefix}{{{name}}}:open"]
        lease_ms = self._lease_s * 1000
        words = [op, limits.request_ms, limits.token_ms, limits.concurrency, lease_ms, num_tokens, *leases]
        await self._turn()
        try:
            with _bounded_errors():
                async with asyncio.timeout(self._timeout_s):
                    return _verdict(await _SCRIPT.run(self._client, keys, [*map(str, words)]))
        finally:
            self._calls.release()

    async def _turn(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._calls.acquire()
        except TimeoutError as error:
            raise StoreBusyError("too many calls at once") from error


@contextmanager
def _bounded_errors() -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError, TimeoutError, ValueError) as error:  # ValueError: numbers that are none
        raise StoreAwayError(str(error) or type(error).__name__) from error


def _verdict(answer: object) -> Verdict:
    if not isinstance(answer, list) or len(answer) != 4:
        raise StoreAwayError("the server answered something else")
    refused_by, over, requests, tokens = (each.decode() if isinstance(each, bytes) else str(each) for each in answer)
    return Verdict(refused_by, float(over), float(requests), float(tokens))
