"""The end of a stack: gateways first, so that nothing new comes; then workers, then brokers."""

import asyncio
import time
from collections.abc import Callable, Sequence

from kvferry.pools import LEAVE_SECONDS
from kvferry.stack import Stack
from kvferry.supervisor import Supervisor

GRACE_SECONDS = 5.0
"""What a broker gets to end by itself."""

REMIND_SECONDS = 5.0
BROKER_NAMES = ("nats", "valkey")

Say = Callable[[str], None]


async def end_all(stack: Stack, supervisor: Supervisor, say: Say, hurry: asyncio.Event) -> None:
    """End every child, each kind with its own time to finish; all at once when ``hurry`` is set."""
    hurrying = asyncio.create_task(_hurry(supervisor, say, hurry))
    workers = [name for name in supervisor.names if name not in stack.gateways and name not in BROKER_NAMES]
    gateway_seconds, worker_seconds = stack.gateway.shutdown_timeout, stack.worker.shutdown_timeout
    try:
        say(f"no new requests are taken; open ones have {gateway_seconds:g} s (again to end everything at once)")
        await _end(supervisor, say, list(stack.gateways), gateway_seconds + LEAVE_SECONDS)
        await _end(supervisor, say, workers, worker_seconds + LEAVE_SECONDS)
        await _end(supervisor, say, BROKER_NAMES, GRACE_SECONDS)
    finally:
        hurrying.cancel()
        supervisor.kill_all()
        await supervisor.stop(*supervisor.names, grace_seconds=GRACE_SECONDS)


async def _end(supervisor: Supervisor, say: Say, names: Sequence[str], grace_seconds: float) -> None:
    """End these, and say now and then which are waited for."""
    reminding = asyncio.create_task(_remind(supervisor, say, names))
    try:
        await supervisor.stop(*names, grace_seconds=grace_seconds)
    finally:
        reminding.cancel()


async def _remind(supervisor: Supervisor, say: Say, names: Sequence[str]) -> None:
    started = time.monotonic()
    while True:
        await asyncio.sleep(REMIND_SECONDS)
        here = [name for name in names if name in supervisor.names and supervisor.keeper(name).child is not None]
        say(f"waiting for {', '.join(here)} to finish ({time.monotonic() - started:.0f} s)")


async def _hurry(supervisor: Supervisor, say: Say, hurry: asyncio.Event) -> None:
    await hurry.wait()
    say("ending everything at once")
    supervisor.kill_all()
