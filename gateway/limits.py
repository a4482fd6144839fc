"""Limits of an API key, what a store of them promises, and how an answer tells a client where it stands."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.errors import GatewayError

MINUTE_MS = 60_000.0
SLACK_MS = 1.0
"""Rounding of stored times must not refuse the last request of a minute."""

MAX_DEBT_MS = 3_600_000.0
"""An hour: whatever a clock that jumped or a limit that was lowered leaves behind, a key is free again by then."""

LEASE_S = 45.0
"""A slot that nobody renews is free after so long: a gateway that died frees its slots within a minute."""

REQUESTS, TOKENS, CONCURRENCY = "requests", "tokens", "concurrency"
CODE = "rate_limit_exceeded"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a key may do; 0 is no limit. A minute's worth may be spent at once, and grows back evenly."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrency: int = 0

    @property
    def any(self) -> bool:
        """Whether there is anything to watch."""
        return bool(self.requests_per_minute or self.tokens_per_minute or self.concurrency)

    @property
    def request_ms(self) -> float:
        """Milliseconds in which a request grows back; 0: no limit."""
        return MINUTE_MS / self.requests_per_minute if self.requests_per_minute else 0.0

    @property
    def token_ms(self) -> float:
        """Milliseconds in which a token grows back; 0: no limit."""
        return MINUTE_MS / self.tokens_per_minute if self.tokens_per_minute else 0.0

    def part(self, num_parts: int) -> Limits:
        """Return what each of so many may let through that can't ask each other: at least one of everything."""
        parts = (self.requests_per_minute, self.tokens_per_minute, self.concurrency)
        return Limits(*(-(-whole // num_parts) for whole in parts))


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Verdict:
    """``refused_by`` is "" or the limit that was in the way; after ``retry_ms`` the same may pass.

    A debt is the time until everything that was spent has grown back; a whole minute is a spent limit.
    """

    refused_by: str = ""
    retry_ms: float = 0.0
    requests_debt_ms: float = 0.0
    tokens_debt_ms: float = 0.0


class StoreAwayError(Exception):
    """The store didn't do it, or not in time. Whether it was done is unknown."""


class StoreBusyError(StoreAwayError):
    """So many calls are on their way that this one never began; the store itself may be well."""


class LimitStore(Protocol):
    """Where keys stand. Every call is atomic; all may raise ``StoreAwayError``."""

    async def enter(self, name: str, limits: Limits, lease: str) -> Verdict:
        """Count a request and give it a slot under ``lease``, or refuse and count nothing.

        Refused too while no token is left. Order: concurrency, requests, tokens.
        """

    async def take(self, name: str, limits: Limits, num_tokens: int) -> Verdict:
        """Spend tokens, all or none."""

    async def leave(self, name: str, limits: Limits, lease: str, num_tokens: int) -> Verdict:
        """Free the slot and give tokens back; below 0 they are spent, whatever is left. Never refused."""

    async def renew(self, held: Mapping[str, Collection[str]]) -> None:
        """Hold these leases, by name, for another ``LEASE_S``; one that had ended counts again."""

    async def warm(self) -> None:
        """Make what later calls need, such as connections; may take longer than they do."""

    async def close(self) -> None:
        """Let go of connections. Idempotent."""


def rate_headers(limits: Limits, verdict: Verdict) -> dict[str, str]:
    """OpenAI's headers for the limits that there are."""
    headers: dict[str, str] = {}
    for what, limit, debt_ms in (
        (REQUESTS, limits.requests_per_minute, verdict.requests_debt_ms),
        (TOKENS, limits.tokens_per_minute, verdict.tokens_debt_ms),
    ):
        if limit:
            headers[f"x-ratelimit-limit-{what}"] = str(limit)
            headers[f"x-ratelimit-remaining-{what}"] = str(_remaining(limit, debt_ms))
            headers[f"x-ratelimit-reset-{what}"] = _duration(debt_ms)
    return headers


def too_many(limits: Limits, verdict: Verdict) -> GatewayError:
    """The 429 of a refusal; its type is the kind of limit, as OpenAI's is."""
    words = {
        REQUESTS: f"{limits.requests_per_minute} requests a minute",
        TOKENS: f"{limits.tokens_per_minute} tokens a minute",
        CONCURRENCY: f"{limits.concurrency} requests at a time",
    }
    retry_s = max(1, math.ceil(verdict.retry_ms / 1000))
    return GatewayError(
        429,
        f"Rate limit reached: this key may have {words[verdict.refused_by]}. Try again in {retry_s} s",
        type=TOKENS if verdict.refused_by == TOKENS else REQUESTS,
        code=CODE,
        retry_after_s=retry_s,
    )


def _remaining(limit: int, debt_ms: float) -> int:
    return max(0, math.floor((MINUTE_MS - debt_ms) / MINUTE_MS * limit + 0.001))


def _duration(ms: float) -> str:
    """As OpenAI writes it: 120ms, 6.5s, 1m30s."""
    if ms < 1000:
        return f"{math.ceil(ms)}ms"
    minutes, rest = divmod(math.ceil(ms / 10) / 100, 60)
    return f"{int(minutes)}m{rest:.6g}s" if minutes else f"{rest:.6g}s"
