"""What the attacker has: real brokers as they are shipped, and the credentials of one role."""

from collections.abc import Iterator

import pytest

from kvferry.brokers import Broker, nats_broker, running, valkey_broker
from tests.support.bounded_run import Run, run

__all__ = ["Run", "run"]


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
