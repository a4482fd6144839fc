"""What tests of every room share: the real model and real brokers, made once and only if asked."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Without a card GPU kernels are interpreted: Triton decides it when it is imported, which transformers does, too.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What computes with the real model comes first: processes that share the tests end at about the same time."""
    items.sort(key=lambda item: item.get_closest_marker("model") is None)


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """Folder of the real default model; converted on first use, under a file lock."""
    from kvferry.model_store import ensure_model

    return ensure_model(None, lambda line: None)


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real NATS server that lives for the session, with credentials that permit everything."""
    from kvferry.brokers import nats_broker, running
    from kvferry.secrets_nats import Rights

    anything = {"test": Rights((">",), (">",))}
    with running(lambda folder: nats_broker(folder, anything), tmp_path_factory.mktemp("nats")) as broker:
        yield broker.urls["test"]


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real Valkey server that lives for the session, with credentials that permit everything."""
    from kvferry.brokers import running, valkey_broker

    anything = {"test": "~* &* +@all"}
    with running(lambda folder: valkey_broker(folder, anything), tmp_path_factory.mktemp("valkey")) as broker:
        yield broker.urls["test"]
