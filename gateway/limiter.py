"""Judges the requests of limited keys: with all gateways where the store is there, alone while it is away."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.keys import Key
from gateway.limits import LEASE_S, NO_LIMITS, LimitStore, StoreAwayError, StoreBusyError, Verdict
from gateway.memory_limits import MemoryLimits
from runtime.logs import get_logger
from runtime.tasks import spawn

RETRY_S = 1.0
"""How often a store that is away is looked for. Until it is found, no request asks it."""

TICKS_PER_RENEWAL = int(LEASE_S / RETRY_S / 3)
LOG_S = 10.0

log = get_logger("gateway.limiter")

Ask = Callable[[LimitStore], Awaitable[Verdict]]


@dataclass(slots=True)
class Stay:
    """One request of a limited key. ``verdict`` is the latest: where the key stands, or why it may not."""

    key: Key
    lease: str
    verdict: Verdict
    num_taken: int = 0
    entered_shared: bool = False
    taken_shared: bool = False
    over: bool = False


class Limiter:
    """Keeps a twin of the store at hand, which stands where the store last said. Never raises."""

    def __init__(self, store: LimitStore | None = None, local: MemoryLimits | None = None, num_alone: int = 1) -> None:
        """Without a store it judges alone, always. With one, ``keep`` must run: it finds the store again.

        So many are alone together, as the processes of one gateway are: each lets its part of a limit through then.
        """
        self._store = store
        self._local = local or MemoryLimits()
        self._num_alone = num_alone
        self._held: defaultdict[str, set[str]] = defaultdict(set)
        self._missed: list[tuple[str, str]] = []  # names and leases whose end the store hasn't heard of
        self._leases = (f"{secrets.token_hex(8)}-{number}" for number in itertools.count())
        self._away = False

    @property
    def alone(self) -> bool:
        """Whether the store is away and each gateway judges by itself."""
        return self._away

    async def enter(self, key: Key) -> Stay:
        """Count a request that has come; it holds a slot until ``leave``, unless the verdict refuses it."""
        name, limits, lease = key.name, key.limits, next(self._leases)
        shared = await self._shared(lambda store: store.enter(name, limits, lease))
        verdict = shared or await self._local.enter(name, limits.part(self._num_alone), lease)
        stay = Stay(key, lease, verdict, entered_shared=shared is not None, over=bool(verdict.refused_by))
        if not stay.over and limits.concurrency:
            self._held[name].add(lease)
        if shared is not None:
            self._local.note(name, shared, self._slot(stay))
        return stay

    async def take(self, stay: Stay, num_tokens: int) -> None:
        """Reserve what the request may need at most; see ``stay.verdict``.

        Never more than a minute's worth: a request that is larger than that waits for a full bucket, and
        what it uses beyond is a debt that ``leave`` leaves behind.
        """
        name, limits = stay.key.name, stay.key.limits
        if not limits.tokens_per_minute or stay.over:
            return
        wanted, alone = min(num_tokens, limits.tokens_per_minute), limits.part(self._num_alone)
        shared = await self._shared(lambda store: store.take(name, limits, wanted))
        if shared is not None:
            self._local.note(name, shared)
        else:
            wanted = min(num_tokens, alone.tokens_per_minute)
        stay.verdict = shared or await self._local.take(name, alone, wanted)
        if not stay.verdict.refused_by:
            stay.num_taken, stay.taken_shared = wanted, shared is not None

    async def leave(self, stay: Stay, num_used: int) -> None:
        """Free the slot and settle: what was reserved and not used is given back. Idempotent.

        The store hears of it even if this is canceled.
        """
        if stay.over:
            return
        stay.over = True
        name, limits = stay.key.name, stay.key.limits
        self._held[name].discard(stay.lease)
        if not self._held[name]:
            del self._held[name]
        if not limits.concurrency and not limits.tokens_per_minute:
            return
        taken_of = limits if stay.taken_shared else limits.part(self._num_alone)
        await self._local.leave(name, taken_of, stay.lease, stay.num_taken - num_used)
        reserved = stay.num_taken if stay.taken_shared else 0
        told = self._tell_end(stay, reserved - num_used)
        await asyncio.shield(spawn(told, "limits-leave"))  # who hangs up at this very moment must not keep the slot

    async def keep(self) -> None:
        """Reach a store that was away, and renew the slots of open requests; until canceled."""
        for tick in itertools.count(1):
            await asyncio.sleep(RETRY_S)
            if self._away:
                await self._reach()
            elif tick % TICKS_PER_RENEWAL == 0:
                await self.renew()

    async def renew(self) -> None:
        """Once. A store that was away learns of all slots, and of those that are free again."""
        held = {name: tuple(leases) for name, leases in self._held.items()}
        await self._local.renew(held)

        async def ask(store: LimitStore) -> Verdict:
            await store.renew(held)
            return Verdict()

        if await self._shared(ask) is not None:
            ended = [(name, each) for name in held for each in set(held[name]) - self._held.get(name, set())]
            missed, self._missed = self._missed, []
            for name, lease in (*ended, *missed):
                await self._free(name, lease)

    async def close(self) -> None:
        """End the store's connections."""
        if self._store is not None:
            try:
                await self._store.close()
            except StoreAwayError as error:
                log.warning("limits_not_closed", reason=str(error))

    async def _tell_end(self, stay: Stay, num_tokens: int) -> None:
        name, limits, lease = stay.key.name, stay.key.limits, stay.lease
        heard = await self._shared(lambda store: store.leave(name, limits, lease, num_tokens))
        if heard is None and stay.entered_shared and limits.concurrency:
            self._missed.append((name, lease))

    async def _free(self, name: str, lease: str) -> None:
        """One that has ended, as the store will hear now or with the next renewal."""
        await self._local.leave(name, NO_LIMITS, lease, 0)
        if await self._shared(lambda store: store.leave(name, NO_LIMITS, lease, 0)) is None:
            self._missed.append((name, lease))

    def _slot(self, stay: Stay) -> str:
        return stay.lease if not stay.over and stay.key.limits.concurrency else ""

    async def _reach(self) -> None:
        """Find out whether the store is there again, with time to spare: no request waits for it."""
        if self._store is None:
            return
        try:
            await self._store.warm()
        except StoreAwayError as error:
            self._is_away(error)
        else:
            self._away = False
            log.info("limits_shared")
        await self.renew()  # alone too: the twin's slots are leases as well

    async def _shared(self, ask: Ask) -> Verdict | None:
        """What the store says; None if there is none, or it is away, or has no time."""
        if self._store is None or self._away:
            return None
        try:
            return await ask(self._store)
        except StoreBusyError:
            return None
        except StoreAwayError as error:
            self._is_away(error)
            return None

    def _is_away(self, error: StoreAwayError) -> None:
        self._away = True
        log.every(LOG_S, "away").warning("limits_alone", reason=str(error))
