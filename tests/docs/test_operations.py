"""docs/operations.md names the metrics, codes, reasons and events that there are."""

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client.parser import text_string_to_metric_families

from engine.api import Load
from gateway import front
from gateway.dispatch_metrics import DispatchCounters, watch_waiting
from gateway.metrics import HttpMetrics
from gateway.workers.sums import Sums
from kvtransfer.node import worker_metrics
from protocol.errors import MEANINGS, Code
from runtime.bus import BusCounters
from runtime.metrics import PREFIX, Metrics

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
CODE = "\n".join(
    path.read_text(encoding="utf-8")
    for room in ("gateway", "kvtransfer", "prefill_svc", "decode_svc", "runtime")
    for path in (ROOT / room).rglob("*.py")
)


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def names_of(metrics: Metrics) -> set[str]:
    found = {family.name for family in metrics.registry.collect()}
    return {name for name in found if name.startswith(PREFIX)}


def test_every_metric_is_named_and_no_other() -> None:
    bus = cast("Any", SimpleNamespace(counters=BusCounters()))
    of_gateway = Metrics()
    HttpMetrics(of_gateway)
    DispatchCounters(of_gateway)
    watch_waiting(of_gateway, lambda: 0)
    of_gateway.watch_bus("control", bus)
    link = SimpleNamespace(counters={}, fallbacks={})
    node = SimpleNamespace(postbox=SimpleNamespace(bus=bus, num_refused=0), link=link)
    worker = SimpleNamespace(load=Load(), held={}, bytes_moved=0)
    of_worker = worker_metrics(cast("Any", node), cast("Any", worker))
    of_several = [each.name for each in text_string_to_metric_families(asyncio.run(Sums({}).page()))]
    together = {name for name in of_several if name.startswith(PREFIX) and not name.endswith("_created")}
    named = set(re.findall(r"`(kvferry_\w+[a-z])`", section("Metrics")))
    assert named == names_of(of_gateway) | names_of(of_worker) | together


def test_codes_stand_beside_their_status() -> None:
    lines = [line for line in section("What a client sees").splitlines() if re.match(r"\| \d{3} ", line)]
    shown = {name: int(line[2:5]) for line in lines for name in re.findall(r"`(\w+)`", line.split("|")[2])}
    ours = {name: status for name, status in shown.items() if name in set(Code)}
    assert len(ours) >= 10
    assert all(MEANINGS[Code(name)].status == status for name, status in ours.items())


def test_paths_without_a_key_are_those_of_the_gateway() -> None:
    table = section("Is it well?").split("A worker's status port")[0]
    assert set(re.findall(r"^\| `(/\w+)`", table, re.MULTILINE)) == front.OPEN_ROUTES


def test_every_reason_and_event_that_it_names_is_in_the_code() -> None:
    reasons = section("Is it well?").split("Reasons have a code")[1].split("A worker's status port")[0]
    events = "".join(line.split("|")[1] for line in section("Logs").splitlines() if line.startswith("| `"))
    named = re.findall(r"`(\w+)`", reasons + events)
    assert len(named) > 20
    missing = [name for name in named if f'"{name}"' not in CODE]
    assert [name for name in missing if not re.fullmatch(r"no_(prefill|decode)_worker", name)] == []
    assert 'f"no_{role}_worker"' in CODE


def test_rooms_of_events_are_loggers() -> None:
    rows = [line.split("|")[2] for line in section("Logs").splitlines() if line.startswith("| `")]
    rooms = {room for cell in rows for room in re.findall(r"`([\w.]+)`", cell)}
    assert all(f'get_logger("{room}")' in CODE for room in rooms)
