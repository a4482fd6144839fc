"""One run of the stack: brokers, workers and gateway from their start to their end."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from kvferry.brokers import PORT_TRIES, START_SECONDS, Broker, nats_broker, valkey_broker
from kvferry.errors import BrokerError, StartError, UsageError
from kvferry.health import Health, ask_health, first_request
from kvferry.output import Output
from kvferry.signals import ending_signals, exit_code_of
from kvferry.stack import GATEWAY_NAME, Stack, child_specs, with_brokers
from kvferry.supervisor import ChildSpec, Supervisor

GRACE_SECONDS = 5.0
"""What gateway, workers and brokers each get to end by themselves."""

_POLL_SECONDS = 0.1
_REMIND_SECONDS = 10.0
_BROKER_NAMES = ("nats", "valkey")


class LiveStack:
    """One run of the stack."""

    def __init__(self, stack: Stack, folder: Path, output: Output) -> None:
        """Prepare; `folder` is private and for the brokers. Made inside the running loop."""
        self._stack = stack
        self._folder = folder
        self._output = output
        self._say = output.say
        self._supervisor = Supervisor(output.say, output.emit)
        self._stop = asyncio.Event()
        self._exit_code = 0
        self._started = time.monotonic()

    async def run(self) -> int:
        """Start all, wait for a reason to end, end all."""
        self._listen_for_signals()
        work = asyncio.create_task(self._start())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                await self._stay(stop)
            return self._exit_code
        finally:
            for task in (work, stop):
                task.cancel()
                with suppress(asyncio.CancelledError, StartError):
                    await task
            await self._end_all()

    async def _start(self) -> None:
        """Start brokers, workers and gateway; return when the gateway says that all are there."""
        self._stack = await self._with_brokers(self._stack)
        failed = asyncio.create_task(self._supervisor_failed())
        for spec in child_specs(self._stack):
            self._say(f"starting {spec.name}")
            self._supervisor.start(spec)
        ready = asyncio.create_task(self._until_ready())
        try:
            await asyncio.wait({failed, ready}, return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result()
        finally:
            failed.cancel()
            ready.cancel()
        self._say(f"ready after {time.monotonic() - self._started:.1f} s; try:")
        gateway = self._stack.gateway
        key = gateway.api_key[0] if gateway.api_key else ""
        request = first_request(gateway.host, gateway.port, gateway.served_model_name, key)
        self._output.bare(f"\n{request}\n")

    async def _stay(self, stop: asyncio.Task[bool]) -> None:
        """Run until asked to end, or until a child can't run as configured."""
        failed = asyncio.create_task(self._supervisor_failed())
        try:
            await asyncio.wait({failed, stop}, return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result()
        finally:
            failed.cancel()

    async def _supervisor_failed(self) -> None:
        raise UsageError(await self._supervisor.failed())

    async def _with_brokers(self, stack: Stack) -> Stack:
        nats_url = stack.up.nats_url or (await self._start_broker(nats_broker)).url
        redis_url = stack.up.redis_url or (await self._start_broker(valkey_broker)).url
        return with_brokers(stack, nats_url, redis_url)

    async def _start_broker(self, configure: Callable[[Path], Broker]) -> Broker:
        for _ in range(PORT_TRIES):
            broker = configure(self._folder)
            keeper = self._supervisor.start(ChildSpec(broker.name, broker.command, dict(os.environ)))
            end = time.monotonic() + START_SECONDS
            while keeper.num_ends == 0 and time.monotonic() < end:
                if await asyncio.to_thread(broker.answers):
                    self._say(f"{broker.name} listens on 127.0.0.1:{broker.port}")
                    return broker
                await asyncio.sleep(_POLL_SECONDS / 5)
            await self._supervisor.stop(broker.name, grace_seconds=GRACE_SECONDS)
        raise BrokerError(f"{broker.name} did not come up: {broker.last_words()}")

    async def _until_ready(self) -> None:
        remind = time.monotonic() + _REMIND_SECONDS
        while True:
            gateway = self._stack.gateway
            health = await asyncio.to_thread(ask_health, gateway.host, gateway.port)
            missing = self._missing(health)
            if not missing:
                return
            if time.monotonic() >= remind:
                self._say(f"waiting for {missing}")
                remind = time.monotonic() + _REMIND_SECONDS
            await asyncio.sleep(_POLL_SECONDS)

    def _missing(self, health: Health | None) -> str:
        """Return what isn't there yet, in words."""
        if health is None:
            return "the gateway to answer"
        num_prefill = self._stack.num_prefill - health.prefill_workers
        num_decode = self._stack.up.decode - health.decode_workers
        if num_prefill > 0 or num_decode > 0:
            return f"{max(0, num_prefill)} prefill and {max(0, num_decode)} decode workers"
        return "" if health.status == "ok" else f"the gateway, which says {health.status!r:.40}"

    async def _end_all(self) -> None:
        """End everything, the gateway first and the brokers last; a second signal hurries."""
        self._stop.clear()
        hurry = asyncio.create_task(self._hurry())
        stages = ([GATEWAY_NAME], self._stack.worker_names, list(_BROKER_NAMES))
        try:
            for names in stages:
                await self._supervisor.stop(*names, grace_seconds=GRACE_SECONDS)
        finally:
            hurry.cancel()
            self._supervisor.kill_all()
            await self._supervisor.stop(*self._supervisor.names, grace_seconds=GRACE_SECONDS)

    async def _hurry(self) -> None:
        await self._stop.wait()
        self._say("ending everything at once")
        self._supervisor.kill_all()

    def _listen_for_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in ending_signals():
            loop.add_signal_handler(number, self._asked_to_end, number)
        self._output.on_broken = partial(loop.call_soon_threadsafe, self._unread)

    def _asked_to_end(self, number: signal.Signals) -> None:
        self._exit_code = exit_code_of(number)
        self._say(f"{number.name}: ending everything")
        self._stop.set()

    def _unread(self) -> None:
        self._exit_code = 1
        self._stop.set()
