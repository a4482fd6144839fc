"""The process that checks grammars: it is ended by what is too much for it, and another one takes its place."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

import pytest

from gateway.grammars.building import of_schema
from gateway.grammars.checking import CheckBusy, GrammarCheck
from gateway.grammars.errors import GrammarRefused

GOOD = of_schema({"type": "object", "properties": {"a": {"type": "integer"}}})
HEAVY = of_schema({"allOf": [{"type": "string", "pattern": f"a.*{number}"} for number in range(40)]})


def run(work: Callable[[GrammarCheck], Awaitable[None]]) -> None:
    async def bounded() -> None:
        check = GrammarCheck()
        try:
            async with asyncio.timeout(60):
                await work(check)
        finally:
            await check.close()

    asyncio.run(bounded())


def test_it_says_what_is_wrong_and_remembers() -> None:
    async def work(check: GrammarCheck) -> None:
        await check.check(GOOD)
        for _ in range(2):
            with pytest.raises(GrammarRefused, match="unclosed"):
                await check.check("start: /(/")
        process = check._process
        await check.check(GOOD)
        assert check._process is process

    run(work)


def test_what_is_too_much_is_refused_and_the_next_one_is_checked() -> None:
    async def work(check: GrammarCheck) -> None:
        with pytest.raises(GrammarRefused, match="too complex"):
            await check.check(HEAVY)
        await check.check(GOOD)
        with pytest.raises(GrammarRefused, match="too complex"):
            await check.check(HEAVY)

    run(work)


def test_a_process_that_is_killed_says_nothing_of_its_grammar() -> None:
    async def work(check: GrammarCheck) -> None:
        await check.check(GOOD)
        process = check._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        asked = asyncio.ensure_future(check.check("start: /a/"))
        await asyncio.sleep(0.1)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(CheckBusy):
            await asked
        await check.check("start: /a/")

    run(work)


def test_it_knows_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFERRY_NATS_URL", "nats://user:secret@host")

    async def work(check: GrammarCheck) -> None:
        await check.check(GOOD)
        assert check._process is not None
        with open(f"/proc/{check._process.pid}/environ", "rb") as environ:  # noqa: PTH123, ASYNC230
            assert b"secret" not in environ.read()

    run(work)
