"""A command's short visit to the bus: it hears who is there, and says what it came for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from kvferry.broker_access import OPERATOR, BrokerAccess
from kvferry.errors import StartError, UsageError
from kvferry.stack_file import find_stack
from kvferry.which_stack import stack_setting
from protocol.codec import decode
from protocol.errors import WireError
from protocol.messages import GatewayStatus, Peer, WorkerStatus
from runtime import bus_address, redis_address
from runtime.broker_settings import BrokerTlsSettings
from runtime.identity import new_peer, process_id
from runtime.logs import setup_logs
from runtime.nats_bus import connect_bus
from runtime.postbox import Postbox
from runtime.roster import BEAT_S
from runtime.roster_store import RosterStore
from runtime.settings import setting

HEAR_S = 1.6 * BEAT_S
"""Somebody who lives is heard in this time, unless its cores are very busy; the store helps with workers."""

CONNECT_S = 10.0


class VisitError(StartError):
    """The bus can't be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitSettings(BrokerTlsSettings):
    """Which stack a command is for."""

    stack: str = stack_setting()
    nats_url: str = setting(
        bus_address.checked_url,
        "",
        "NATS server of a stack that `up` hasn't started (better in the variable or a file: command lines can be "
        "read by everyone on the host)",
        metavar="URL",
        secret=True,
    )
    redis_url: str = setting(
        redis_address.checked_url,
        "",
        "its Redis or Valkey server, if it has one (better in the variable or a file)",
        metavar="URL",
        secret=True,
    )

    def access(self) -> BrokerAccess:
        """Return where the brokers are, and as whom to go there. Raises `UsageError`."""
        if self.nats_url and not self.stack:
            return BrokerAccess(self.nats_url, self.redis_url, self.nats_tls, self.redis_tls)
        return find_stack(self.stack).brokers[OPERATOR]


@dataclass(slots=True)
class Visit:
    """Who was heard, by id, each in its newest life."""

    postbox: Postbox
    workers: dict[str, tuple[Peer, WorkerStatus]] = field(default_factory=dict)
    gateways: dict[str, tuple[Peer, GatewayStatus]] = field(default_factory=dict)

    def hear(self, sender: Peer, status: WorkerStatus | GatewayStatus) -> None:
        """Note a heartbeat."""
        if isinstance(status, GatewayStatus):
            self.gateways[sender.id] = sender, status
        elif status.state == "leaving":
            self.workers.pop(sender.id, None)
        elif sender.id not in self.workers or self.workers[sender.id][0].epoch <= sender.epoch:
            self.workers[sender.id] = sender, status


@asynccontextmanager
async def visiting(settings: VisitSettings) -> AsyncIterator[Visit]:
    """Be on the bus, having heard who is there. Raises `UsageError` or `VisitError`."""
    setup_logs("error", "cli")
    access = settings.access()
    me = new_peer(process_id("cli", ""))
    heard: list[str] = []
    try:
        async with asyncio.timeout(CONNECT_S):
            bus = await connect_bus(access.nats_url, name=me.id, tls=access.nats_tls, on_wait=heard.append)
    except TimeoutError:
        raise VisitError(f"not within {CONNECT_S:g} s: {heard[-1] if heard else 'waiting for the bus'}") from None
    except ValueError as error:
        raise UsageError(f"--nats-url: {error}") from None
    postbox = Postbox(bus, me)
    visit = Visit(postbox)
    postbox.on(WorkerStatus, visit.hear)
    postbox.on(GatewayStatus, visit.hear)
    try:
        await postbox.open()
        await asyncio.gather(_read_store(access, visit), asyncio.sleep(HEAR_S))
        yield visit
    finally:
        postbox.close()
        await bus.close()


async def _read_store(access: BrokerAccess, visit: Visit) -> None:
    """Workers that said something within the last seconds; entries that aren't ours are passed over."""
    store = RosterStore(access.redis_url or None, access.redis_tls)
    for frame in await store.all():
        try:
            envelope, status = decode(frame)
        except WireError:
            continue
        if isinstance(status, WorkerStatus):
            visit.hear(envelope.sender, status)
    await store.close()
