"""Metrics carry our prefix, clash with nobody, and show what buses count."""

import asyncio
from typing import Any

import pytest

from runtime.memory_bus import MemoryBus, MemoryHub
from runtime.metrics import Metrics


def test_each_kind_of_metric_is_rendered_with_prefix_and_labels() -> None:
    metrics = Metrics()
    metrics.counter("requests", "Requests.", ["outcome"]).labels("finished").inc(2)
    metrics.gauge("free_blocks", "Free blocks.").set(7)
    metrics.histogram("ttft_seconds", "Time to first token.", buckets=(0.5, 1.0)).observe(0.7)
    metrics.watch("queue_len", "Waiting requests.", lambda: 3.0)
    text = metrics.render().decode()
    for line in (
        'kvferry_requests_total{outcome="finished"} 2.0',
        "kvferry_free_blocks 7.0",
        'kvferry_ttft_seconds_bucket{le="0.5"} 0.0',
        'kvferry_ttft_seconds_bucket{le="1.0"} 1.0',
        "kvferry_queue_len 3.0",
    ):
        assert line in text.splitlines()


def test_two_services_in_one_process_do_not_clash_but_one_name_twice_is_an_error() -> None:
    first, second = Metrics(), Metrics()
    first.counter("requests", "Requests.").inc()
    second.counter("requests", "Requests.")
    assert b"kvferry_requests_total 1.0" in first.render()
    assert b"kvferry_requests_total 0.0" in second.render()
    with pytest.raises(ValueError, match="requests"):
        first.counter("requests", "Requests.")


def test_the_counters_of_each_bus_are_shown_under_its_label(run: Any) -> None:
    async def main() -> str:
        metrics, hub = Metrics(), MemoryHub()
        control, contents = MemoryBus(hub), MemoryBus(hub)
        metrics.watch_bus("control", control)
        metrics.watch_bus("contents", contents)
        contents.publish("x", b"12345")
        await contents.drain()
        return metrics.render().decode()

    text = run(main())
    assert 'kvferry_bus_published_bytes_total{bus="contents"} 5.0' in text
    assert 'kvferry_bus_published_bytes_total{bus="control"} 0.0' in text
    assert text.count("# HELP kvferry_bus_dropped_messages_total ") == 1


def test_metrics_need_no_loop() -> None:
    assert asyncio._get_running_loop() is None
    assert b"process_" in Metrics().render()
