"""The supervisor: how many it starts with what, what it does when one ends, and how it ends itself."""

from __future__ import annotations

import asyncio
import errno
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from gateway.listening import listen
from gateway.settings import GatewaySettings
from gateway.workers import supervisor as supervisors
from gateway.workers.line import Hear
from gateway.workers.seat import Briefing
from gateway.workers.supervisor import BAD_SETTINGS, Supervisor, part
from runtime.backoff import Backoff
from runtime.settings import SettingsError
from tests.support.http_twin import run, until

SETTINGS = GatewaySettings(
    gateway_id="gateway-a", gateway_workers=3, max_connections=100, max_waiting=8, shutdown_timeout=0.01
)


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(supervisors, "LEAVE_S", 0.01)


class Worker:
    """As the supervisor sees one."""

    pid = num_open = 0
    ready = serves = silent = False

    def __init__(self, number: int, briefing: Briefing, *, obeys: bool) -> None:
        self.number, self.briefing = number, briefing
        self.over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._obeys = obeys

    async def ended(self) -> int:
        return await asyncio.shield(self.over)

    def terminate(self) -> None:
        if self._obeys:
            self.over.set_result(0)

    def kill(self) -> None:
        self.over.set_result(-signal.SIGKILL)

    async def close(self) -> None:
        """Nothing is open."""


class Started:
    """A supervisor and all workers that it has started, in their order."""

    def __init__(self, settings: GatewaySettings, *, obey: bool) -> None:
        self.workers: list[Worker] = []
        self.stop = asyncio.Event()
        self.num_failures = 0
        self._obey = obey
        supervisor = Supervisor(settings, listen("127.0.0.1", 0), self._start)  # type: ignore[arg-type]
        self.running = asyncio.ensure_future(supervisor.run(self.stop))

    async def _start(self, number: int, briefing: Briefing, answers: Mapping[str, Hear]) -> Worker:
        if self.num_failures:
            self.num_failures -= 1
            raise BlockingIOError(errno.EAGAIN, "no process can be had")
        self.workers.append(Worker(number, briefing, obeys=self._obey))
        return self.workers[-1]


@asynccontextmanager
async def started(settings: GatewaySettings = SETTINGS, *, obey: bool = True) -> AsyncIterator[Started]:
    all_of_it = Started(settings, obey=obey)
    await until(lambda: len(all_of_it.workers) == settings.gateway_workers)
    try:
        yield all_of_it
    finally:
        all_of_it.stop.set()
        await all_of_it.running


def test_each_worker_has_a_name_of_its_own_and_its_part_of_what_holds_for_all() -> None:
    async def work() -> None:
        async with started() as s:
            told = [each.briefing.settings for each in s.workers]
            assert [each.gateway_id for each in told] == ["gateway-a-w1", "gateway-a-w2", "gateway-a-w3"]
            assert [each.max_connections for each in told] == [34, 33, 33]
            assert [each.max_waiting for each in told] == [3, 3, 2]
            assert {each.briefing.num_workers for each in s.workers} == {3}

    run(work())


def test_a_name_that_leaves_no_room_for_those_of_workers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisors, "setup_logs", lambda *_: None)  # those of the tests stay as they are
    assert supervisors.run(replace(SETTINGS, gateway_id="gateway-" + "a" * 55, port=0)) == BAD_SETTINGS


@pytest.mark.parametrize(("whole", "num_parts"), [(1, 1), (2048, 2), (7, 3), (64, 64), (100, 64)])
def test_parts_are_the_whole_and_differ_by_one_at_most(whole: int, num_parts: int) -> None:
    parts = [part(whole, num_parts, number) for number in range(1, num_parts + 1)]
    assert sum(parts) == whole
    assert max(parts) - min(parts) <= 1


def test_one_that_ends_unasked_is_started_again_and_the_others_go_on() -> None:
    async def work() -> None:
        async with started() as s:
            for code in (-signal.SIGKILL, 1, 0):
                s.workers[-1].over.set_result(code)
                num_started = len(s.workers)
                await until(lambda before=num_started: len(s.workers) == before + 1)  # type: ignore[misc]
                assert s.workers[-1].number == s.workers[-2].number
            assert not s.running.done()
            assert sum(each.over.done() for each in s.workers) == 3

    run(work())


def test_one_that_cannot_be_started_is_tried_again() -> None:
    async def work() -> None:
        async with started() as s:
            s.num_failures = 3
            s.workers[0].over.set_result(1)
            await until(lambda: len(s.workers) == 4)
            assert s.num_failures == 0
            assert not s.running.done()

    run(work())


def test_when_one_cannot_run_as_it_was_told_all_end_and_the_exit_code_says_so() -> None:
    async def work() -> None:
        async with started() as s:
            s.workers[1].over.set_result(BAD_SETTINGS)
            assert await s.running == BAD_SETTINGS
            assert len(s.workers) == 3
            assert all(each.over.done() for each in s.workers)

    run(work())


def test_told_to_end_it_ends_all_and_starts_none_again() -> None:
    async def work() -> None:
        async with started() as s:
            s.stop.set()
            assert await s.running == 0
            assert [each.over.result() for each in s.workers] == [0, 0, 0]

    run(work())


def test_one_that_does_not_end_in_time_is_ended() -> None:
    async def work() -> None:
        async with started(obey=False) as s:
            s.stop.set()
            assert await s.running == 1
            assert {each.over.result() for each in s.workers} == {-signal.SIGKILL}

    run(work())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"redis_url": ""}, "--gateway-workers 2 needs --redis-url"),
        ({"max_connections": 1}, "--max-connections 1 is less than one for each of the 2 --gateway-workers"),
        ({"max_waiting": 1}, "--max-waiting 1 is less than one for each of the 2 --gateway-workers"),
    ],
)
def test_what_several_workers_could_not_keep_to_is_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        GatewaySettings(gateway_workers=2, **given)  # type: ignore[arg-type]
    GatewaySettings(gateway_workers=1, **given)  # type: ignore[arg-type]
