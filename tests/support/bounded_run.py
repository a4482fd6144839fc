"""A loop with a deadline, for tests of what is asynchronous."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

Run = Callable[[Coroutine[Any, Any, Any]], Any]
DEADLINE_S = 20.0


@pytest.fixture
def run() -> Run:
    """Run a coroutine in a loop of its own, with a deadline."""

    async def bounded(work: Coroutine[Any, Any, Any]) -> Any:
        async with asyncio.timeout(DEADLINE_S):
            return await work

    return lambda work: asyncio.run(bounded(work))
