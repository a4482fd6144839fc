"""What the attacker has: real brokers as they are shipped, and the credentials of one role."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from kvferry.brokers import Broker, nats_broker, running, valkey_broker

Run = Callable[[Coroutine[Any, Any, Any]], Any]
DEADLINE_S = 20.0


@pytest.fixture
def run() -> Run:
    """Run a coroutine in a loop of its own, with a deadline."""

    async def bounded(work: Coroutine[Any, Any, Any]) -> Any:
        async with asyncio.timeout(DEADLINE_S):
            return await work

    return lambda work: asyncio.run(bounded(work))


@pytest.fixture(scope="session")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A NATS server with the permissions of each role."""
    with running(nats_broker, tmp_path_factory.mktemp("bus")) as broker:
        yield broker


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Valkey server with the permissions of each role."""
    with running(valkey_broker, tmp_path_factory.mktemp("store")) as broker:
        yield broker
