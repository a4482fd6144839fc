"""What several processes have counted, as one: counters and histograms add up, each gauge has a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

COUNTERS = ("counter", "histogram")

GAUGE_RULES: dict[str, Callable[[float, float], float]] = {
    "kvferry_gateway_requests_running": float.__add__,
    "kvferry_requests_waiting": float.__add__,
    "kvferry_frames_refused": float.__add__,
    "kvferry_gateway_limits_alone": max,  # 1 if any of them judges alone
    "kvferry_workers_absent": max,  # all look at the same workers, and some have noticed earlier
    "process_virtual_memory_bytes": float.__add__,
    "process_resident_memory_bytes": float.__add__,
    "process_open_fds": float.__add__,
    "process_max_fds": float.__add__,
    "process_start_time_seconds": min,
}
"""What becomes of two processes' values. One that isn't here adds up."""

Labels = tuple[tuple[str, str], ...]


class Families:
    """Values by metric; made of what one process says, and added to by what others say."""

    def __init__(self) -> None:
        """Empty."""
        self._families: dict[str, Metric] = {}
        self._values: dict[str, dict[tuple[str, Labels], float]] = {}

    def add(self, said: Iterable[Sequence[Any]], kinds: Sequence[str] = ()) -> None:
        """Take in what ``told`` gave, of these kinds alone if any are named."""
        for name, about, kind, samples in said:
            if kinds and kind not in kinds:
                continue
            self._families.setdefault(name, Metric(name, about, kind))
            values = self._values.setdefault(name, {})
            for sample, labels, value in samples:
                key = (sample, tuple((label, text) for label, text in labels))
                values[key] = _rule(name, kind, sample)(values[key], float(value)) if key in values else float(value)

    def told(self) -> list[Sequence[Any]]:
        """All of it, as ``add`` takes it."""
        return [
            (name, each.documentation, each.type, [(*key, value) for key, value in self._values[name].items()])
            for name, each in self._families.items()
        ]

    def total(self, sample: str) -> float:
        """The sum of a sample over all its labels."""
        return sum(value for values in self._values.values() for (name, _), value in values.items() if name == sample)

    def render(self) -> bytes:
        """All of it as Prometheus text."""
        registry = CollectorRegistry()
        registry.register(_Fixed(self._metrics()))
        return generate_latest(registry)

    def _metrics(self) -> Iterator[Metric]:
        for name, family in self._families.items():
            metric = Metric(name, family.documentation, family.type)
            for (sample, labels), value in self._values[name].items():
                metric.add_sample(sample, dict(labels), value)
            yield metric


def told(registry: CollectorRegistry) -> list[Sequence[Any]]:
    """What a process has counted, in plain lists."""
    return [
        (each.name, each.documentation, each.type, [(s.name, sorted(s.labels.items()), s.value) for s in each.samples])
        for each in registry.collect()
    ]


def _rule(name: str, kind: str, sample: str) -> Callable[[float, float], float]:
    if sample.endswith("_created"):
        return min
    return float.__add__ if kind in COUNTERS else GAUGE_RULES.get(name, float.__add__)


class _Fixed(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        """As they are."""
        yield from self._metrics
