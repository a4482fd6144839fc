"""What all workers of one gateway have counted together, those included that have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.workers.line import LineBroken
from gateway.workers.member import Member
from gateway.workers.merging import COUNTERS, Families, told
from gateway.workers.seat import LOAD, METRICS
from runtime.logs import get_logger
from runtime.metrics import PREFIX, Metrics

ANSWER_S = 1.0
"""A worker that doesn't say within so long how it stands, stands where it last stood."""

LOG_S = 10.0

_REQUESTS = f"{PREFIX}gateway_requests_total"

Said = list[Sequence[Any]]

log = get_logger("gateway.sums")


class Sums:
    """Nothing that was ever shown is lost with a worker, so that no counter falls."""

    def __init__(self, members: Mapping[int, Member]) -> None:
        """``members`` may change at any time; ``ended`` says when one has gone."""
        self._members = members
        self._metrics: dict[int, Said] = {}
        self._loads: dict[int, int] = {}
        self._before: dict[int, Families] = {}  # what earlier lives of a worker had counted
        self._own = Metrics()
        self._own.watch("gateway_workers_ready", "Worker processes that can take requests", self._num_ready)
        self._restarts = self._own.counter("gateway_worker_restarts", "Worker processes that ended unasked")

    def restarted(self) -> None:
        """One ended unasked."""
        self._restarts.inc()

    def ended(self, number: int) -> None:
        """This worker's counters stay where they were last seen; its gauges go with it."""
        self._loads.pop(number, None)
        self._before.setdefault(number, Families()).add(self._metrics.pop(number, []), COUNTERS)

    async def page(self) -> str:
        """All metrics as Prometheus text."""
        await self._ask(METRICS, self._metrics)
        whole, workers = Families(), self._of_workers()
        for said in (told(self._own.registry), self._by_worker(workers), *(each.told() for each in workers.values())):
            whole.add(said)
        return whole.render().decode()

    async def load(self) -> int:
        """Open requests."""
        await self._ask(LOAD, self._loads)
        return sum(self._loads.values())

    async def _ask(self, what: str, found: dict[int, Any]) -> None:
        async def ask(member: Member) -> None:
            try:
                answer = await member.ask(what, ANSWER_S)
            except LineBroken as error:
                log.every(LOG_S, what).warning("worker_not_asked", worker=member.number, reason=str(error))
                return
            if self._members.get(member.number) is member:  # else what it said is with its end
                found[member.number] = answer

        await asyncio.gather(*(ask(member) for member in self._members.values() if member.begun))

    def _of_workers(self) -> dict[int, Families]:
        found: dict[int, Families] = {}
        for number in sorted({*self._before, *self._metrics}):
            found[number] = families = Families()
            families.add(self._before[number].told() if number in self._before else [])
            families.add(self._metrics.get(number, []))
        return found

    def _by_worker(self, workers: Mapping[int, Families]) -> Said:
        """How evenly they are used."""
        requests = [
            (_REQUESTS.replace("gateway_", "gateway_worker_"), [("worker", str(number))], families.total(_REQUESTS))
            for number, families in workers.items()
        ]
        connections = [
            (f"{PREFIX}gateway_worker_connections", [("worker", str(number))], float(member.num_open))
            for number, member in sorted(self._members.items())
        ]
        return [
            (f"{PREFIX}gateway_worker_requests", "Requests by worker process", "counter", requests),
            (f"{PREFIX}gateway_worker_connections", "Open connections by worker process", "gauge", connections),
        ]

    def _num_ready(self) -> float:
        return float(sum(member.ready and member.serves and not member.silent for member in self._members.values()))
