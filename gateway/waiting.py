"""Requests that wait for room: first come, first served, and not more than fit."""

from __future__ import annotations

from typing import Protocol


class Waiter(Protocol):
    """A request in the queue."""

    request_id: str
    number: int

    def try_to_start(self) -> bool:
        """Start, or end, now if possible; False to go on waiting."""


class Waiting:
    """Oldest request first, also one that had been sent and was refused.

    Strict order: while the first one finds no room nobody overtakes it, so that a long prompt isn't
    starved by short ones.
    """

    def __init__(self, max_waiting: int) -> None:
        """``max_waiting`` bounds newcomers; a request that had been sent may always come back."""
        self._max_waiting = max_waiting
        self._waiting: dict[str, Waiter] = {}
        self._pumping = False

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether a newcomer is turned away."""
        return len(self._waiting) >= self._max_waiting

    def add(self, waiter: Waiter) -> None:
        """Wait for room, in order of arrival at the gateway."""
        self._waiting[waiter.request_id] = waiter

    def remove(self, request_id: str) -> None:
        """It waits no longer. Idempotent."""
        self._waiting.pop(request_id, None)

    def pump(self) -> None:
        """Something changed at the workers: start as many as find room."""
        if not self._waiting or self._pumping:
            return
        self._pumping = True
        try:
            for waiter in sorted(self._waiting.values(), key=lambda each: each.number):
                if waiter.request_id in self._waiting and not waiter.try_to_start():
                    break
        finally:
            self._pumping = False
