"""Figures of several processes as one: nothing counted twice, nothing lost, a rule for each gauge."""

from __future__ import annotations

import json

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.dispatch_metrics import DispatchCounters
from gateway.metrics import HttpMetrics
from gateway.workers.merging import COUNTERS, GAUGE_RULES, Families, told
from runtime.memory_bus import MemoryBus, MemoryHub
from runtime.metrics import Metrics
from tests.support.http_twin import run


def added(*parts: Metrics) -> dict[str, Metric]:
    """What people read of them together."""
    whole = Families()
    for each in parts:
        whole.add(json.loads(json.dumps(told(each.registry))))  # as it comes over a line
    return {family.name: family for family in text_string_to_metric_families(whole.render().decode())}


def values(family: Metric) -> dict[tuple[str, ...], float]:
    return {(each.name, *each.labels.values()): each.value for each in family.samples}


def test_counters_add_up_by_label() -> None:
    one, two = Metrics(), Metrics()
    for metrics, counts in ((one, {"a": 3, "b": 1}), (two, {"a": 4, "c": 2})):
        counter = metrics.counter("things", "Things", ("kind",))
        for kind, number in counts.items():
            counter.labels(kind).inc(number)
    found = values(added(one, two)["kvferry_things"])
    assert {key[1]: value for key, value in found.items() if key[0].endswith("_total")} == {"a": 7, "b": 1, "c": 2}


def test_histograms_add_up_bucket_by_bucket() -> None:
    parts = [Metrics(), Metrics()]
    for metrics, seconds in zip(parts, ((0.5, 3.0), (0.5, 0.7, 90.0)), strict=True):
        histogram = metrics.histogram("wait_seconds", "Waits", buckets=(1.0, 10.0))
        for each in seconds:
            histogram.observe(each)
    found = values(added(*parts)["kvferry_wait_seconds"])
    name = "kvferry_wait_seconds"
    assert [found[f"{name}_bucket", edge] for edge in ("1.0", "10.0", "+Inf")] == [3, 4, 5]
    assert found[f"{name}_count",] == 5
    assert found[f"{name}_sum",] == 0.5 + 3.0 + 0.5 + 0.7 + 90.0


def test_when_something_was_first_counted_is_the_earliest_of_all() -> None:
    one, two = Metrics(), Metrics()
    for each in (one, two):
        each.counter("things", "Things")
    created = [each.registry.get_sample_value("kvferry_things_created") for each in (one, two)]
    assert values(added(two, one)["kvferry_things_created"])["kvferry_things_created",] == min(created)  # type: ignore[type-var]


def test_what_all_see_of_the_same_workers_is_not_added_up() -> None:
    parts = [Metrics(), Metrics()]
    for metrics, num_seen in zip(parts, (2, 1), strict=True):
        counters = DispatchCounters(metrics)
        for _ in range(num_seen):
            counters.kept_out("prefill", "worker_lost", first=True)
    assert values(added(*parts)["kvferry_workers_absent"]) == {("kvferry_workers_absent", "prefill"): 2}


def test_every_gauge_of_a_gateway_has_a_rule() -> None:
    async def gauges() -> set[str]:
        metrics = Metrics()
        HttpMetrics(metrics)
        DispatchCounters(metrics)
        metrics.watch_bus("control", MemoryBus(MemoryHub()))
        return {name for name, _, kind, _ in told(metrics.registry) if kind not in COUNTERS}

    assert run(gauges()) | {"kvferry_requests_waiting", "kvferry_frames_refused"} == set(GAUGE_RULES)
