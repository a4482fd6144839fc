"""What the dispatcher does, as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Callable

from gateway.outcome import DispatchMetrics, Outcome
from runtime.metrics import Metrics


def watch_waiting(metrics: Metrics, read: Callable[[], float]) -> None:
    """Show how many requests wait for room."""
    metrics.watch("requests_waiting", "requests that wait for room", read)


class DispatchCounters(DispatchMetrics):
    """Counts routes, refusals, moves and outcomes, and the seconds of each phase."""

    def __init__(self, metrics: Metrics) -> None:
        """``metrics`` is the process's registry."""
        self._routed = metrics.counter("requests_routed", "attempts sent out, by path to the first token", ["path"])
        self._refused = metrics.counter("refusals", "refusals by workers", ["role", "code"])
        self._moved = metrics.counter("requests_moved", "attempts given up for another", ["phase", "code"])
        self._kept_out = metrics.counter(
            "workers_kept_out", "times that a worker got no work since it failed", ["role", "code"]
        )
        self._absent = metrics.gauge("workers_absent", "workers that are kept out now", ["role"])
        self._resent = metrics.counter("resends_asked", "gaps in a stream that were asked for again")
        self._ended = metrics.counter("requests_ended", "requests by their one outcome", ["outcome", "phase", "code"])
        self._wasted = metrics.counter("wasted_tokens", "tokens made after a choice's end")
        self._phases = metrics.histogram("phase_seconds", "time in each phase of a request", ["phase"])

    def routed(self, path: str) -> None:
        """An attempt was sent."""
        self._routed.labels(path).inc()

    def refused(self, role: str, code: str) -> None:
        """A worker refused."""
        self._refused.labels(role, code).inc()

    def moved(self, phase: str, code: str) -> None:
        """A request goes on under another attempt."""
        self._moved.labels(phase, code).inc()

    def resent(self) -> None:
        """A gap was asked for."""
        self._resent.inc()

    def kept_out(self, role: str, code: str, *, first: bool) -> None:
        """A worker failed."""
        self._kept_out.labels(role, code).inc()
        if first:
            self._absent.labels(role).inc()

    def let_back(self, role: str) -> None:
        """A worker is in again, or gone."""
        self._absent.labels(role).dec()

    def ended(self, outcome: Outcome) -> None:
        """A request has its outcome."""
        self._ended.labels(outcome.kind, outcome.phase, outcome.code).inc()
        self._wasted.inc(outcome.num_wasted_tokens)
        for phase, seconds in outcome.spent_s.items():
            self._phases.labels(phase).observe(seconds)
