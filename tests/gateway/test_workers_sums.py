"""What a gateway of several processes shows: the sum, whoever is stuck or has ended."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.metrics import HttpMetrics
from gateway.workers.line import LineBroken
from gateway.workers.merging import told
from gateway.workers.sums import Sums
from runtime.metrics import Metrics
from tests.support.http_twin import run


class Worker:
    """As the supervisor sees one."""

    def __init__(self, number: int) -> None:
        self.number, self.num_open = number, 0
        self.ready = self.serves = self.begun = True
        self.silent = self.stuck = False
        self.metrics = HttpMetrics(Metrics())

    def count(self, num_requests: int) -> None:
        for _ in range(num_requests):
            self.metrics.limited("requests")
            self.metrics._requests.labels("/v1/completions", "200").inc()

    async def ask(self, what: str, within_s: float) -> Any:
        if self.stuck:
            raise LineBroken(f"no answer within {within_s} s")
        return told(self.metrics.all.registry) if what == "metrics" else self.metrics.num_running


class Whole:
    """Two workers and their sums."""

    def __init__(self) -> None:
        self.members = {number: Worker(number) for number in (1, 2)}
        self.sums = Sums(self.members)  # type: ignore[arg-type]

    async def counted(self) -> float:
        return await self.value('kvferry_gateway_limited_total{limit="requests"}')

    async def value(self, name: str) -> float:
        lines = (await self.sums.page()).splitlines()
        [value] = [line.rpartition(" ")[2] for line in lines if line.rpartition(" ")[0] == name]
        return float(value)


def test_whoever_is_asked_shows_what_all_have_counted_and_how_it_is_spread() -> None:
    async def work() -> None:
        whole = Whole()
        whole.members[1].count(3)
        whole.members[2].count(4)
        assert await whole.counted() == 7
        for number, expected in ((1, 3), (2, 4)):
            assert await whole.value(f'kvferry_gateway_worker_requests_total{{worker="{number}"}}') == expected
        assert await whole.value("kvferry_gateway_workers_ready") == 2

    run(work())


def test_no_counter_falls_when_a_worker_ends_and_its_successor_begins_at_nothing() -> None:
    async def work() -> None:
        whole = Whole()
        whole.members[1].count(3)
        whole.members[1].metrics.began()
        whole.members[2].count(4)
        assert await whole.counted() == 7
        for _ in range(2):
            del whole.members[1]
            whole.sums.ended(1)
            whole.sums.restarted()
            assert await whole.counted() == 7
            whole.members[1] = Worker(1)
            assert await whole.counted() == 7
        whole.members[1].count(2)
        assert await whole.counted() == 9
        assert await whole.value('kvferry_gateway_worker_requests_total{worker="1"}') == 5
        assert await whole.value("kvferry_gateway_worker_restarts_total") == 2
        assert await whole.value("kvferry_gateway_requests_running") == 0  # what ran there runs no more

    run(work())


def test_a_worker_that_is_stuck_stands_where_it_last_stood() -> None:
    async def work() -> None:
        whole = Whole()
        for worker in whole.members.values():
            worker.count(5)
            worker.metrics.began()
        assert await whole.counted() == 10
        assert await whole.sums.load() == 2
        whole.members[2].stuck = whole.members[2].silent = True
        whole.members[1].count(1)
        assert await whole.counted() == 11
        assert await whole.sums.load() == 2
        assert await whole.value("kvferry_gateway_workers_ready") == 1

    run(work())


def test_one_that_ends_while_it_is_asked_is_not_counted_for_its_successor() -> None:
    async def work() -> None:
        whole = Whole()
        going = whole.members[1]
        going.count(3)

        async def ends(what: str, within_s: float) -> Any:
            said = told(going.metrics.all.registry)
            whole.members[1] = Worker(1)
            whole.sums.ended(1)
            return said

        going.ask = ends  # type: ignore[method-assign]
        await whole.sums.page()
        whole.members[1].count(1)
        assert await whole.counted() == 1

    run(work())


def test_one_that_is_only_starting_is_not_waited_for() -> None:
    async def work() -> None:
        whole = Whole()
        whole.members[1].count(2)
        whole.members[2].begun = whole.members[2].serves = False

        async def never(what: str, within_s: float) -> Any:
            raise AssertionError("it was asked")

        whole.members[2].ask = never  # type: ignore[method-assign]
        assert await whole.counted() == 2
        assert await whole.value("kvferry_gateway_workers_ready") == 1

    run(work())


@pytest.mark.parametrize("number", [1, 2])
def test_connections_are_shown_for_each(number: int) -> None:
    async def work() -> None:
        whole = Whole()
        whole.members[number].num_open = 5
        assert await whole.value(f'kvferry_gateway_worker_connections{{worker="{number}"}}') == 5

    run(work())
