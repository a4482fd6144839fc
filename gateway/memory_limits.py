"""Where keys stand, in this process: the twin of ``redis_limits``, and what counts while Redis is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from gateway.limits import CONCURRENCY, LEASE_S, MAX_DEBT_MS, MINUTE_MS, REQUESTS, SLACK_MS, TOKENS, Limits, Verdict


@dataclass(slots=True)
class _Account:
    """Times in milliseconds of our clock: until when debts last, and when each lease ends."""

    requests_until: float = 0.0
    tokens_until: float = 0.0
    leases: dict[str, float] = field(default_factory=dict)


class MemoryLimits:
    """A ``LimitStore``; never away. Not larger than the number of keys that were ever seen."""

    def __init__(self, lease_s: float = LEASE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease_ms = lease_s * 1000
        self._clock = clock
        self._accounts: dict[str, _Account] = {}

    async def enter(self, name: str, limits: Limits, lease: str) -> Verdict:
        """See ``LimitStore``. The algorithm is the generic cell rate algorithm, as in ``redis_limits``."""
        account, now = self._account(name), self._now()
        requests, tokens = _left(account.requests_until, now), _left(account.tokens_until, now)
        if limits.concurrency and self._num_open(account, now) >= limits.concurrency:
            return Verdict(CONCURRENCY, 0.0, requests, tokens)
        if limits.request_ms and requests + limits.request_ms > MINUTE_MS + SLACK_MS:
            return Verdict(REQUESTS, requests + limits.request_ms - MINUTE_MS, requests, tokens)
        if limits.token_ms and tokens + limits.token_ms > MINUTE_MS + SLACK_MS:
            return Verdict(TOKENS, tokens + limits.token_ms - MINUTE_MS, requests, tokens)
        if limits.concurrency:
            account.leases[lease] = now + self._lease_ms
        account.requests_until = now + requests + limits.request_ms
        return Verdict("", 0.0, requests + limits.request_ms, tokens)

    async def take(self, name: str, limits: Limits, num_tokens: int) -> Verdict:
        """See ``LimitStore``."""
        account, now = self._account(name), self._now()
        requests, tokens = _left(account.requests_until, now), _left(account.tokens_until, now)
        wanted = tokens + num_tokens * limits.token_ms
        if wanted > MINUTE_MS + SLACK_MS:
            return Verdict(TOKENS, wanted - MINUTE_MS, requests, tokens)
        account.tokens_until = now + wanted
        return Verdict("", 0.0, requests, wanted)

    async def leave(self, name: str, limits: Limits, lease: str, num_tokens: int) -> Verdict:
        """See ``LimitStore``."""
        account, now = self._account(name), self._now()
        account.leases.pop(lease, None)
        tokens = _left(account.tokens_until, now) - num_tokens * limits.token_ms
        tokens = min(max(tokens, 0.0), MAX_DEBT_MS)
        account.tokens_until = now + tokens
        return Verdict("", 0.0, _left(account.requests_until, now), tokens)

    async def renew(self, held: Mapping[str, Collection[str]]) -> None:
        """See ``LimitStore``."""
        until = self._now() + self._lease_ms
        for name, leases in held.items():
            self._account(name).leases.update(dict.fromkeys(leases, until))

    async def warm(self) -> None:
        """See ``LimitStore``."""

    async def close(self) -> None:
        """See ``LimitStore``."""

    def note(self, name: str, verdict: Verdict, lease: str = "") -> None:
        """Another store has let something in: stand where it says, so that nothing starts anew if it goes away."""
        account, now = self._account(name), self._now()
        account.requests_until = now + verdict.requests_debt_ms
        account.tokens_until = now + verdict.tokens_debt_ms
        if lease:
            account.leases[lease] = now + self._lease_ms

    def _account(self, name: str) -> _Account:
        return self._accounts.setdefault(name, _Account())

    def _num_open(self, account: _Account, now: float) -> int:
        account.leases = {lease: until for lease, until in account.leases.items() if until > now}
        return len(account.leases)

    def _now(self) -> float:
        return self._clock() * 1000


def _left(until: float, now: float) -> float:
    return min(max(until - now, 0.0), MAX_DEBT_MS)
