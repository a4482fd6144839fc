"""What the NATS bus promises beyond the common contract: start order, credentials, bad servers."""

import asyncio
import signal
from typing import Any

import pytest

from runtime import nats_client
from runtime.bus_address import BusAddress
from runtime.nats_bus import NatsBus, connect_bus

pytestmark = pytest.mark.nats


class Reasons:
    """What the bus said it was waiting for."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[str] = asyncio.Queue()

    def __call__(self, why: str) -> None:
        self.queue.put_nowait(why)


async def closed_state(bus: NatsBus, *, connected: bool) -> None:
    changes: asyncio.Queue[bool] = asyncio.Queue()
    bus.on_state(changes.put_nowait)
    while bus.connected is not connected:
        await changes.get()


def test_a_service_may_start_before_its_server_and_says_what_it_waits_for(nats_server: Any, run: Any) -> None:
    async def main() -> None:
        reasons = Reasons()
        connecting = asyncio.create_task(connect_bus(nats_server.url, name="t", on_wait=reasons))
        assert str(nats_server.port) in await reasons.queue.get()
        assert not connecting.done()
        nats_server.start()
        bus = await connecting
        assert bus.connected
        assert bus.max_payload == 1 << 20
        await bus.close()

    run(main())


def test_waiting_for_a_server_can_be_cancelled(nats_server: Any, run: Any) -> None:
    async def main() -> None:
        reasons = Reasons()
        connecting = asyncio.create_task(connect_bus(nats_server.url, name="t", on_wait=reasons))
        await reasons.queue.get()
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting

    run(main())


def test_messages_of_several_subscriptions_are_heard_in_the_order_in_which_they_were_sent(
    nats_server: Any, run: Any
) -> None:
    nats_server.start()

    async def main() -> None:
        bus = await connect_bus(nats_server.url, name="t", on_wait=Reasons())
        heard: list[bytes] = []
        for subject in ("one", "other"):
            bus.subscribe(subject, lambda _, payload: heard.append(payload))
        for number in range(100):
            bus.publish(("one", "other")[number % 2], b"%d" % number)
        await bus.drain()
        assert heard == [b"%d" % number for number in range(100)]
        await bus.close()

    run(main())


def test_credentials_in_the_address_are_used_and_never_said(nats_server: Any, run: Any) -> None:
    nats_server.start("--user", "worker", "--pass", "s/cret")
    good = nats_server.url.replace("://", "://worker:s%2Fcret@")
    bad = nats_server.url.replace("://", "://worker:wrong-one@")

    async def main() -> None:
        reasons = Reasons()
        refused = asyncio.create_task(connect_bus(bad, name="t", on_wait=reasons))
        why = ""
        while "authorization" not in why.lower():  # at times the kernel reports a reset first
            why = await reasons.queue.get()
            assert "wrong-one" not in why
        refused.cancel()
        await asyncio.wait([refused])
        bus = await connect_bus(good, name="t", on_wait=reasons)
        await bus.ready()
        await bus.close()

    run(main())


def test_a_server_that_comes_back_with_a_smaller_limit_gets_only_what_it_takes(
    nats_server: Any, run: Any, tmp_path: Any
) -> None:
    small = tmp_path / "small.conf"
    small.write_text("max_payload: 1024\n")
    nats_server.start()

    async def main() -> None:
        bus = await connect_bus(nats_server.url, name="t", on_wait=Reasons())
        got: asyncio.Queue[bytes] = asyncio.Queue()
        bus.subscribe("x", lambda _, payload: got.put_nowait(payload))
        nats_server.kill()
        await closed_state(bus, connected=False)
        bus.publish("x", b"z" * 4096)
        bus.publish("x", b"short")
        nats_server.start("-c", str(small))
        assert await got.get() == b"short"
        assert bus.max_payload == 1024
        assert bus.counters.dropped_messages == 1
        await bus.close()

    run(main())


def test_a_server_that_stands_still_blocks_no_publisher(nats_server: Any, run: Any) -> None:
    nats_server.start()

    async def main() -> None:
        bus = await connect_bus(nats_server.url, name="t", on_wait=Reasons(), max_pending=1 << 22)
        last: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        bus.subscribe("last", lambda *_: last.set_result(None))
        await bus.ready()
        nats_server.signal(signal.SIGSTOP)
        for _ in range(400):
            bus.publish("x", b"z" * (1 << 16))
            if not bus.counters.dropped_messages:
                await asyncio.sleep(0)
        assert bus.counters.dropped_messages
        nats_server.signal(signal.SIGCONT)
        await bus.drain()
        bus.publish("last", b"")
        await last
        await bus.close()

    run(main())


def test_a_line_that_is_dead_without_having_been_closed_is_noticed_and_replaced(
    nats_server: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_client, "PING_INTERVAL_S", 0.03)
    monkeypatch.setattr(nats_client, "LOOK_AGAIN_S", 0.03)
    monkeypatch.setattr(nats_client, "CONNECT_TIMEOUT_S", 0.3)
    nats_server.start()

    async def main() -> None:
        bus = await connect_bus(nats_server.url, name="t", on_wait=Reasons())
        nats_server.signal(signal.SIGSTOP)
        for _ in range(400):
            bus.publish("x", b"z" * (1 << 16))
        await closed_state(bus, connected=False)
        nats_server.kill()
        nats_server.start()
        await bus.ready()
        await bus.close()

    run(main())


def test_a_server_that_dies_again_and_again_causes_losses_but_no_disorder(nats_server: Any, run: Any) -> None:
    nats_server.start()

    async def main() -> None:
        bus = await connect_bus(nats_server.url, name="t", on_wait=Reasons())
        got: list[int] = []
        last: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        bus.subscribe("number", lambda _, payload: got.append(int(payload)))
        bus.subscribe("last", lambda *_: last.done() or last.set_result(None))
        number = 0
        for _ in range(5):
            for _ in range(500):
                number += 1
                bus.publish("number", b"%d" % number)
                if number % 50 == 0:
                    await asyncio.sleep(0)
            nats_server.kill()
            await closed_state(bus, connected=False)
            nats_server.start()
            await bus.drain()
        bus.publish("last", b"")
        await last
        assert got == sorted(set(got))
        assert bus.counters.reconnects == 5
        await bus.close()

    run(main())


def test_many_drains_and_cancelled_ones_leave_the_line_working(nats_server: Any, run: Any) -> None:
    nats_server.start()

    async def main() -> None:
        bus = await connect_bus(nats_server.url, name="t", on_wait=Reasons())
        got: list[bytes] = []
        bus.subscribe("x", lambda _, payload: got.append(payload))
        for number in range(50):
            bus.publish("x", b"z" * 100_000)
            impatient = asyncio.create_task(bus.drain())
            await asyncio.sleep(0)
            if number % 2:
                impatient.cancel()
        await asyncio.gather(*(bus.drain() for _ in range(20)))
        assert bus.counters.reconnects == 0
        while len(got) < 50:
            await bus.drain()
        await bus.close()

    run(main())


@pytest.mark.parametrize("url", ["http://host:1", "nats://", "nats://host:port", ""])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"address|[Pp]ort"):
        BusAddress.parse(url)


def test_addresses_show_no_credentials() -> None:
    address = BusAddress.parse("nats://token@a,tls://[::1]:5000")
    assert str(address) == "tls://a:4222,tls://[::1]:5000"
    assert address.token == "token"
    assert "token" not in str(address)
