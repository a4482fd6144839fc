"""A command's short visit to the bus: it hears who is there, and says what it came for."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from kvferry.errors import StartError, UsageError
from kvferry.stack_file import find_stack
from kvferry.which_stack import StackSettings
from protocol.codec import decode
from protocol.errors import WireError
from protocol.messages import GatewayStatus, Peer, WorkerStatus
from runtime import units
from runtime.identity import new_peer
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
class VisitSettings(StackSettings):
    """Which stack a command is for."""

    nats_url: str = setting(
        units.text,
        "",
        "NATS server of a stack that `up` hasn't started (better in the variable: command lines can be read by "
        "everyone on the host)",
        metavar="URL",
        secret=True,
    )
    redis_url: str = setting(
        units.text,
        "",
        "its Redis or Valkey server, if it has one (better in the variable)",
        metavar="URL",
        secret=True,
    )

    def addresses(self) -> tuple[str, str]:
        """Return the URLs of NATS and, if there is one, Redis. Raises `UsageError`."""
        if self.nats_url and not self.stack:
            return self.nats_url, self.redis_url
        found = find_stack(self.stack)
        return found.nats_url, found.redis_url


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
    nats_url, redis_url = settings.addresses()
    me = new_peer(f"cli-{os.getpid()}")
    try:
        async with asyncio.timeout(CONNECT_S):
            bus = await connect_bus(nats_url, name=me.id, on_wait=lambda line: None)
    except TimeoutError:
        raise VisitError(f"the bus can't be reached within {CONNECT_S:g} s") from None
    except ValueError as error:
        raise UsageError(f"--nats-url: {error}") from None
    postbox = Postbox(bus, me)
    visit = Visit(postbox)
    postbox.on(WorkerStatus, visit.hear)
    postbox.on(GatewayStatus, visit.hear)
    try:
        await postbox.open()
        await asyncio.gather(_read_store(redis_url, visit), asyncio.sleep(HEAR_S))
        yield visit
    finally:
        postbox.close()
        await bus.close()


async def _read_store(redis_url: str, visit: Visit) -> None:
    """Workers that said something within the last seconds; entries that aren't ours are passed over."""
    store = RosterStore(redis_url or None)
    for frame in await store.all():
        try:
            envelope, status = decode(frame)
        except WireError:
            continue
        if isinstance(status, WorkerStatus):
            visit.hear(envelope.sender, status)
    await store.close()
