"""Metrics of one process (or, in a test, of one of several services in it)."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from runtime.bus import Bus, BusCounters

PREFIX = "kvferry_"
CONTENT_TYPE = CONTENT_TYPE_LATEST

LATENCY_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""From one step on a GPU to a long prompt on a CPU."""


class Metrics:
    """A registry of its own, with factories that put our prefix before each name.

    Names end in their unit (`_seconds`, `_bytes`, `_tokens`); a counter is shown with `_total`.
    A name made twice is a ValueError.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._buses = _BusCollector()
        self.registry.register(self._buses)
        ProcessCollector(registry=self.registry)

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        """Return a new counter; `text` is what people read about it."""
        return Counter(PREFIX + name, text, labels, registry=self.registry)

    def gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        """Return a new gauge."""
        return Gauge(PREFIX + name, text, labels, registry=self.registry)

    def histogram(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        buckets: Sequence[float] = LATENCY_BUCKETS_S,
    ) -> Histogram:
        """Return a new histogram with these upper bounds."""
        return Histogram(PREFIX + name, text, labels, registry=self.registry, buckets=buckets)

    def watch(self, name: str, text: str, read: Callable[[], float]) -> Gauge:
        """Return a new gauge whose value is `read()` whenever somebody looks."""
        gauge = self.gauge(name, text)
        gauge.set_function(read)
        return gauge

    def watch_bus(self, label: str, bus: Bus) -> None:
        """Show the counters of `bus` under the label `bus="<label>"`."""
        self._buses.buses[label] = bus

    def watch_refused(self, read: Callable[[], float]) -> None:
        """Show how many frames a postbox has refused."""
        self.watch("frames_refused", "frames that could not be what they said, since start", read)

    def render(self) -> bytes:
        """Return all metrics in the text format, to be served as `CONTENT_TYPE`."""
        return generate_latest(self.registry)


class _BusCollector(Collector):
    """Reads the counters that buses keep for themselves."""

    def __init__(self) -> None:
        self.buses: dict[str, Bus] = {}

    def describe(self) -> Iterator[Metric]:
        """Name the families, for the check that none is registered twice."""
        for field in BusCounters.__slots__:
            text = f"Bus: {field.replace('_', ' ')} since start"
            yield CounterMetricFamily(f"{PREFIX}bus_{field}", text, labels=["bus"])

    def collect(self) -> Iterator[Metric]:
        """Return one family per counter, one sample per bus."""
        for field, family in zip(BusCounters.__slots__, self.describe(), strict=True):
            assert isinstance(family, CounterMetricFamily)
            for label, bus in self.buses.items():
                family.add_metric([label], float(getattr(bus.counters, field)))
            yield family
