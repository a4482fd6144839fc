"""Waits until every gateway says that the workers are there."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from kvferry.health import Health, ask_health
from kvferry.stack import Stack

_POLL_SECONDS = 0.1
_REMIND_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Shape:
    """How many workers of each kind."""

    prefill: int
    decode: int

    def __str__(self) -> str:
        """In words."""
        return f"{self.prefill} prefill and {self.decode} decode workers"


class Readiness:
    """Asks the gateways, and says now and then what is waited for."""

    def __init__(self, stack: Stack, say: Callable[[str], None]) -> None:
        """Prepare; nothing is asked before `until`."""
        self._gateways = stack.gateways
        self._say = say

    async def until(self, shape: Shape, check: Callable[[], None] = lambda: None) -> None:
        """Return when all gateways have heard this many workers or more; ``check`` may raise meanwhile."""
        remind = time.monotonic() + _REMIND_SECONDS
        while missing := await self._missing(shape):
            check()
            if time.monotonic() >= remind:
                self._say(f"waiting for {missing}")
                remind = time.monotonic() + _REMIND_SECONDS
            await asyncio.sleep(_POLL_SECONDS)

    async def _missing(self, shape: Shape) -> str:
        """Return what isn't there yet, in words."""
        for name, gateway in self._gateways.items():
            health = await asyncio.to_thread(ask_health, gateway.host, gateway.port)
            if missing := missing_of(name, health, shape):
                return missing
        return ""


def missing_of(gateway: str, health: Health | None, shape: Shape) -> str:
    """Return what this gateway, or we of it, still lack; "" for nothing."""
    if health is None:
        return f"{gateway} to answer"
    lacking = Shape(max(0, shape.prefill - health.prefill_workers), max(0, shape.decode - health.decode_workers))
    if lacking != Shape(0, 0):
        return f"{lacking}, as {gateway} sees it"
    return "" if health.status == "ok" else f"{gateway}, which says {health.status!r:.40}"
