"""A service with the wrong password says so, without end and without a flood, and never says the password."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest

from kvferry.brokers import Broker
from runtime import nats_bus, roster_store
from runtime.bus_address import BusAddress
from runtime.logs import get_logger
from runtime.nats_bus import connect_bus
from runtime.nats_client import NatsConnection
from runtime.roster_store import RosterStore
from runtime.tls import NO_TLS_FILES

pytestmark = pytest.mark.nats

WRONG = "hush-hush"
TRIES = 40


def with_login(url: str, login: str) -> str:
    address = urlsplit(url)
    return address._replace(netloc=f"{login}{address.hostname}:{address.port}").geturl()


@pytest.mark.parametrize(
    ("login", "whom"),
    [(f"gateway:{WRONG}@", "this user and password"), ("", "whoever names no user"), (f"{WRONG}@", "this user")],
)
def test_a_refused_login_is_tried_again_for_ever_and_said_once_in_a_while(
    bus: Broker, run: Any, monkeypatch: pytest.MonkeyPatch, login: str, whom: str
) -> None:
    tries = 0
    enough = asyncio.Event()
    original = NatsConnection.open

    async def counted(self: NatsConnection, address: BusAddress, name: str) -> None:
        nonlocal tries
        tries += 1
        if tries == TRIES:
            enough.set()
        await original(self, address, name)

    monkeypatch.setattr(NatsConnection, "open", counted)
    monkeypatch.setattr(nats_bus, "RETRY_MAX_S", 0.001)
    said: list[str] = []

    async def main() -> None:
        url = with_login(bus.urls["gateway"], login)
        waiting = asyncio.create_task(connect_bus(url, name="t", tls=NO_TLS_FILES, on_wait=said.append))
        await enough.wait()
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])

    run(main())
    assert len(said) <= nats_bus.MAX_REASONS
    assert any(f"authorization violation: it refuses {whom}" in line for line in said)
    assert not any(WRONG in line or "\n" in line for line in said)


def test_a_store_that_refuses_a_login_is_done_without_and_said_once(
    store: Broker, run: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster_store, "log", get_logger("roster_store"))

    async def main() -> None:
        refused = RosterStore(with_login(store.urls["decode"], f"decode:{WRONG}@"))
        for _ in range(TRIES):
            await refused.put("decode-1", b"x", 60.0)
            assert await refused.all() == []
        await refused.close()

    run(main())
    (record,) = caplog.records
    shown = str(vars(record)["fields"])
    assert "password" in shown
    assert WRONG not in shown
