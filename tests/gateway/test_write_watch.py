"""One timer for a stream: quiet ones are kept alive, and a write that isn't taken ends them, both in time."""

from __future__ import annotations

import asyncio

import pytest

from gateway.write_watch import WriteWatch
from tests.support.virtual_clock import run_virtually

QUIET_S, WRITE_S = 15.0, 60.0


def test_whoever_is_quiet_is_told_each_time_exactly_when_it_has_been_long_enough() -> None:
    async def scenario() -> None:
        now = asyncio.get_running_loop().time
        told: list[float] = []
        watch = WriteWatch(QUIET_S, WRITE_S, lambda: told.append(now()))
        async with watch.limit():
            watch.sent()
            await asyncio.sleep(10)
            watch.sends()
            watch.sent()
            await asyncio.sleep(50)
        assert told == pytest.approx([25, 40, 55])

    run_virtually(scenario())


@pytest.mark.parametrize("begun", [0.0, 1.0, 14.0, 100.0])
def test_a_write_that_takes_too_long_ends_the_stream_whenever_it_began(begun: float) -> None:
    async def stream() -> None:
        watch = WriteWatch(QUIET_S, WRITE_S, lambda: None)
        async with watch.limit():
            watch.sent()
            await asyncio.sleep(begun)
            watch.sends()
            await asyncio.sleep(1000)

    async def scenario() -> None:
        now = asyncio.get_running_loop().time
        with pytest.raises(TimeoutError):
            await stream()
        assert now() == pytest.approx(begun + WRITE_S)

    run_virtually(scenario())


def test_many_writes_that_are_taken_in_time_are_no_late_one() -> None:
    async def scenario() -> None:
        watch = WriteWatch(QUIET_S, WRITE_S, lambda: None)
        async with watch.limit():
            for _ in range(10):
                watch.sends()
                await asyncio.sleep(WRITE_S - 1)
                watch.sent()

    run_virtually(scenario())


def test_nothing_is_left_of_a_stream_that_has_ended() -> None:
    async def scenario() -> None:
        told: list[None] = []
        async with WriteWatch(QUIET_S, WRITE_S, lambda: told.append(None)).limit():
            pass
        await asyncio.sleep(1000)
        assert told == []

    run_virtually(scenario())
