"""The line between a gateway's processes: words arrive, questions are answered, nobody waits without end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from gateway.workers import line as lines
from gateway.workers.line import Hear, Line, LineBroken, open_line
from tests.support.http_twin import run, until


@asynccontextmanager
async def pair(there: Mapping[str, Hear]) -> AsyncIterator[tuple[Line, Line]]:
    """Two ends; the second hears."""
    ends = socket.socketpair()
    one, two = await open_line(ends[0], {}), await open_line(ends[1], there)
    one.start()
    two.start()
    try:
        yield one, two
    finally:
        await one.close()
        await two.close()


def test_what_is_told_arrives_in_its_order() -> None:
    async def work() -> None:
        heard: list[int] = []
        async with pair({"number": heard.append}) as (line, _):
            for number in range(50):
                line.tell("number", number)
            await until(lambda: len(heard) == 50)
            assert heard == list(range(50))

    run(work())


def test_each_question_gets_its_own_answer_and_a_slow_one_holds_up_no_other() -> None:
    async def work() -> None:
        go_on = asyncio.Event()

        async def slow(_: object) -> str:
            await go_on.wait()
            return "slow"

        async with pair({"slow": slow, "quick": lambda _: ["quick", 1.5]}) as (line, _):
            waits = asyncio.ensure_future(line.ask("slow", 10.0))
            assert await line.ask("quick", 10.0) == ["quick", 1.5]
            assert not waits.done()
            go_on.set()
            assert await waits == "slow"

    run(work())


def test_who_asks_hears_when_the_other_end_goes_or_says_nothing() -> None:
    async def work() -> None:
        never = asyncio.Event()
        async with pair({"never": lambda _: never.wait()}) as (line, other):
            with pytest.raises(LineBroken, match=r"no answer within 0\.01 s"):
                await line.ask("never", 0.01)
            waits = asyncio.ensure_future(line.ask("never", 10.0))
            await asyncio.sleep(0)
            await other.close()
            with pytest.raises(LineBroken, match="gone"):
                await waits
            with pytest.raises(LineBroken):
                await line.ask("never", 10.0)

    run(work())


def test_what_nobody_reads_is_not_kept_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_UNSENT_BYTES", 1000)

    async def work() -> None:
        ends = socket.socketpair()
        line = await open_line(ends[0], {})
        for _ in range(2000):
            line.tell("word", "x" * 1000)
        assert line._writer.transport.get_write_buffer_size() < 3000
        with pytest.raises(LineBroken, match="doesn't read"):
            await line.ask("word", 10.0)
        await line.close()
        ends[1].close()

    run(work())
