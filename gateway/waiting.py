"""Requests that wait for room: those that were moved first, then first come, first served."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from gateway.pace import Pace

MAX_ASIDE = 64
"""Requests that others may pass are asked at most this many at a time: each costs a look at all workers."""


class Turn(Enum):
    """What a waiting request makes of its turn."""

    STARTED = auto()
    ENDED = auto()
    WAITS = auto()
    """There is no room for it now; nobody behind may take what it waits for."""
    ASIDE = auto()
    """No worker that is there can serve it; others may pass."""


class Waiter(Protocol):
    """A request in the queue. ``number`` is the order of arrival, ``moved``: workers gave it up."""

    request_id: str
    number: int
    moved: bool

    def try_to_start(self) -> Turn:
        """Start, or end, now if possible."""


@dataclass(frozen=True, slots=True)
class _Place:
    waiter: Waiter
    since: float

    @property
    def rank(self) -> tuple[bool, int]:
        return (not self.waiter.moved, self.waiter.number)


class Waiting:
    """One queue for all pools, since a request waits for a pair. Moved requests go first; of each class the oldest.

    Strict order: while the first one finds no room nobody overtakes it, so that a long prompt isn't
    starved by short ones.

    Bounded: at most ``max_waiting`` newcomers, and none behind one that has waited ``max_age_s``. A
    request that had been sent may always come back; those are bounded by what workers take at once:
    their blocks, ``max_num_seqs``, and the requests that each worker holds at most.
    """

    def __init__(self, max_waiting: int, max_age_s: float) -> None:
        """Needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._max_waiting = max_waiting
        self._max_age_s = max_age_s
        self._places: dict[str, _Place] = {}
        self._pace = Pace()
        self._pumping = False

    def __len__(self) -> int:
        """How many wait."""
        return len(self._places)

    def __contains__(self, request_id: str) -> bool:
        """Whether it waits."""
        return request_id in self._places

    def reason_to_refuse(self) -> str:
        """Why a newcomer would wait in vain; "" if it may wait."""
        newcomers = [place for place in self._places.values() if not place.waiter.moved]
        if len(newcomers) >= self._max_waiting:
            return f"{len(newcomers)} requests are waiting already"
        age_s = self._loop.time() - min((place.since for place in newcomers), default=self._loop.time())
        if age_s > self._max_age_s:
            return f"the first of {len(newcomers)} waiting requests has waited for {age_s:.0f} seconds"
        return ""

    def retry_after_s(self) -> int:
        """When it's worth to come again."""
        now = self._loop.time()
        waited_s = now - min((place.since for place in self._places.values()), default=now)
        return self._pace.retry_after_s(len(self._places), waited_s, now)

    def is_behind(self, waiter: Waiter) -> bool:
        """An older moved request waits already."""
        places = self._places.values()
        return any(place.waiter.moved and place.waiter.number < waiter.number for place in places)

    def add(self, waiter: Waiter) -> None:
        """Wait for room."""
        self._places[waiter.request_id] = _Place(waiter, self._loop.time())

    def remove(self, request_id: str) -> None:
        """It waits no longer. Idempotent."""
        self._places.pop(request_id, None)

    def pump(self) -> None:
        """Something changed at the workers: start as many as find room."""
        if not self._places or self._pumping:
            return
        self._pumping = True
        try:
            self._give_turns()
        finally:
            self._pumping = False

    def _give_turns(self) -> None:
        num_aside = 0
        for place in sorted(self._places.values(), key=lambda each: each.rank):
            if place.waiter.request_id not in self._places:
                continue
            turn = place.waiter.try_to_start()
            num_aside += turn is Turn.ASIDE
            if turn is Turn.STARTED:
                self._pace.moved(self._loop.time())
            if turn is Turn.WAITS or num_aside >= MAX_ASIDE:
                return
