"""Workers that failed: kept out for a while, and let back by one request that tries them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from runtime.logs import get_logger

if TYPE_CHECKING:
    from gateway.outcome import DispatchMetrics
    from protocol.messages import Peer

FIRST_PAUSE_S = 1.0
"""One failure may be chance: little work is lost by a second's doubt."""
LONGEST_PAUSE_S = 30.0
"""A worker that was repaired is found out within half a minute; a broken one costs one request in that time.
Who fails again so soon after it was let back goes on where its pauses were."""

log = get_logger("gateway.kept_out")


class Standing(Enum):
    """What may be sent to a worker."""

    IN = auto()
    DUE = auto()
    """One request, as a probe."""
    OUT = auto()
    PROBED = auto()
    """Its probe is on its way."""


@dataclass(frozen=True, slots=True)
class Absence:
    """A worker that is kept out: since when (the loop's seconds), for which failure, and for how long still."""

    worker: Peer
    code: str
    since: float
    left_s: float


@dataclass(slots=True)
class _Record:
    """``since`` is ``None`` once it's let back; ``probe`` is a request's id, "" if there is none."""

    role: str
    code: str = ""
    since: float | None = None
    until: float = 0.0
    pause_s: float = 0.0
    probe: str = ""
    back: float = float("-inf")


class KeptOut:
    """One record for each life of a worker that has failed; a new life starts with a clean one."""

    def __init__(self, metrics: DispatchMetrics) -> None:
        """Everybody is in. Needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._metrics = metrics
        self._records: dict[Peer, _Record] = {}

    @property
    def num_probes(self) -> int:
        """Requests that try a worker just now."""
        return sum(bool(record.probe) for record in self._records.values())

    def standing(self, worker: Peer) -> Standing:
        """Whether it may get work."""
        record = self._records.get(worker)
        if record is None or record.since is None:
            return Standing.IN
        if record.probe:
            return Standing.PROBED
        return Standing.DUE if self._loop.time() >= record.until else Standing.OUT

    def since(self, worker: Peer) -> float:
        """When it failed last; now if it isn't kept out."""
        record = self._records.get(worker)
        return record.since if record is not None and record.since is not None else self._loop.time()

    def absences(self) -> list[Absence]:
        """Who is kept out, and why."""
        now = self._loop.time()
        return [
            Absence(worker, record.code, record.since, max(record.until - now, 0.0))
            for worker, record in self._records.items()
            if record.since is not None
        ]

    def failed(self, worker: Peer, role: str, request_id: str, code: str) -> None:
        """An attempt ended by the worker's own fault.

        While it is out only its probe tells something new: others had begun before.
        """
        record = self._records.setdefault(worker, _Record(role))
        now = self._loop.time()
        if record.since is not None and record.probe != request_id:
            return
        first = record.since is None
        again = not first or now - record.back < LONGEST_PAUSE_S
        record.pause_s = min(record.pause_s * 2, LONGEST_PAUSE_S) if again and record.pause_s else FIRST_PAUSE_S
        record.code, record.since, record.probe = code, now, ""
        record.until = now + record.pause_s
        self._metrics.kept_out(role, code, first=first)
        log.warning("worker_kept_out", worker=worker.id, role=role, code=code, pause_s=record.pause_s)

    def placed(self, worker: Peer, request_id: str) -> None:
        """A request was sent there; to a worker that is out it's the probe."""
        record = self._records.get(worker)
        if record is not None and record.since is not None and not record.probe:
            record.probe = request_id
            log.info("worker_probed", worker=worker.id, request_id=request_id)

    def worked(self, worker: Peer, request_id: str) -> None:
        """The worker did its part for this request."""
        record = self._records.get(worker)
        if record is None or not record.probe or record.probe != request_id:
            return
        record.since, record.probe, record.back = None, "", self._loop.time()
        self._metrics.let_back(record.role)
        log.info("worker_let_back", worker=worker.id, role=record.role)

    def left(self, worker: Peer, request_id: str) -> None:
        """The request is there no more; if it was the probe, it has told nothing. Idempotent."""
        record = self._records.get(worker)
        if record is not None and record.probe == request_id:
            record.probe = ""

    def forget(self, worker: Peer) -> None:
        """The worker is gone."""
        record = self._records.pop(worker, None)
        if record is not None and record.since is not None:
            self._metrics.let_back(record.role)
