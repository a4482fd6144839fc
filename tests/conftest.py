"""What tests of every room share: the real model and real brokers, made once and only if asked."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """Folder of the real default model; converted on first use, under a file lock."""
    from kvferry.model_store import ensure_model

    return ensure_model(None, lambda line: None)


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL, with credentials, of a real NATS server (JetStream on) that lives for the session."""
    from kvferry.brokers import nats_broker, running

    with running(nats_broker, tmp_path_factory.mktemp("nats")) as broker:
        yield broker.url


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL, with credentials, of a real Valkey server that lives for the session."""
    from kvferry.brokers import running, valkey_broker

    with running(valkey_broker, tmp_path_factory.mktemp("valkey")) as broker:
        yield broker.url
