"""One run of the stack: brokers, workers and gateways from their start to their end."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from kvferry.broker_access import ROLES
from kvferry.brokers import PORT_TRIES, START_SECONDS, Broker, nats_broker, valkey_broker
from kvferry.control import ControlServer
from kvferry.ending import GRACE_SECONDS, end_all
from kvferry.errors import BrokerError, StartError, UsageError
from kvferry.health import base_url, first_request
from kvferry.model_store import cache_root
from kvferry.output import Output
from kvferry.pools import Pools, Wish
from kvferry.readiness import Readiness
from kvferry.signals import ending_signals, exit_code_of
from kvferry.stack import Stack, broker_access, gateway_specs
from kvferry.stack_file import StackFile, published
from kvferry.supervisor import ChildSpec, Supervisor

_POLL_SECONDS = 0.02


class LiveStack:
    """One run of the stack."""

    def __init__(self, stack: Stack, folder: Path, output: Output) -> None:
        """Prepare; `folder` is private: for brokers and the control socket. Made inside the running loop."""
        self._stack = stack
        self._folder = folder
        self._output = output
        self._say = output.say
        self._supervisor = Supervisor(output.say, output.emit)
        self._control = ControlServer(folder / "control", self._asked)
        self._pools: Pools | None = None
        self._stop = asyncio.Event()
        self._exit_code = 0
        self._started = time.monotonic()

    async def run(self) -> int:
        """Start all, wait for a reason to end, end all."""
        self._listen_for_signals()
        with ExitStack() as at_end:
            work = asyncio.create_task(self._start(at_end))
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
                await self._control.close()
                self._stop.clear()
                await end_all(self._stack, self._supervisor, self._say, self._stop)

    async def _start(self, at_end: ExitStack) -> None:
        """Start brokers, workers and gateways; return when the gateways say that all are there."""
        self._stack = await self._with_brokers(self._stack)
        await self._control.start()
        at_end.enter_context(published(self._file()))
        readiness = Readiness(self._stack, self._say)
        pools = self._pools = Pools(self._stack, self._supervisor, readiness, self._say)
        failed = asyncio.create_task(self._supervisor_failed())
        pools.start()
        for spec in gateway_specs(self._stack):
            self._say(f"starting {spec.name}")
            self._supervisor.start(spec)
        ready = asyncio.create_task(readiness.until(pools.shape))
        try:
            await asyncio.wait({failed, ready}, return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result()
        finally:
            failed.cancel()
            ready.cancel()
        pools.open()
        self._welcome()

    def _welcome(self) -> None:
        """Say where the gateways are, and how to ask the first one something."""
        gateway = self._stack.gateway
        for name, each in self._stack.gateways.items():
            self._say(f"{name} at {base_url(each.host, each.port)}")
        self._say(f"ready after {time.monotonic() - self._started:.1f} s; try:")
        asks_key = bool(gateway.api_key or gateway.keys_file)
        request = first_request(gateway.host, gateway.port, gateway.served_model_name, with_key=asks_key)
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
        nats_url, redis_url = stack.up.nats_url, stack.up.redis_url
        nats = dict.fromkeys(ROLES, nats_url) if nats_url else (await self._start_broker(nats_broker)).urls
        redis = dict.fromkeys(ROLES, redis_url) if redis_url else (await self._start_broker(valkey_broker)).urls
        given = stack.worker
        worker = replace(
            given,
            cores_file=given.cores_file or str(self._folder / "cores"),
            shm_dir=given.shm_dir or str(self._folder / "link"),
            packed_dir=given.packed_dir or str(cache_root() / "packed"),
        )
        return replace(stack, worker=worker, brokers=broker_access(stack, nats, redis))

    async def _start_broker(self, configure: Callable[[Path], Broker]) -> Broker:
        for _ in range(PORT_TRIES):
            broker = configure(self._folder)
            keeper = self._supervisor.start(ChildSpec(broker.name, broker.command, dict(os.environ)))
            end = time.monotonic() + START_SECONDS
            while keeper.num_ends == 0 and time.monotonic() < end:
                if await asyncio.to_thread(broker.answers):
                    self._say(f"{broker.name} listens on 127.0.0.1:{broker.port}")
                    return broker
                await asyncio.sleep(_POLL_SECONDS)
            await self._supervisor.stop(broker.name, grace_seconds=GRACE_SECONDS)
        raise BrokerError(f"{broker.name} did not come up: {broker.last_words()}")

    def _file(self) -> StackFile:
        """What other commands of this user may know."""
        return StackFile(
            pid=os.getpid(),
            port=self._stack.gateway.port,
            gateway_urls=tuple(base_url(each.host, each.port) for each in self._stack.gateways.values()),
            control=str(self._folder / "control"),
            brokers=self._stack.brokers,
        )

    async def _asked(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Do what `kvferry scale` or `kvferry restart` asks for. Raises `StartError`."""
        pools = self._pools
        assert pools is not None, "made before the control socket's folder is published"
        command = question.get("command")
        if command == "scale":
            await pools.scale(Wish(_count(question, "prefill"), _count(question, "decode")))
        elif command == "restart":
            await pools.restart()
        else:
            raise UsageError(f"unknown command {command!r:.80}")
        return {"prefill": pools.shape.prefill, "decode": pools.shape.decode, "workers": pools.names}

    def _listen_for_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in ending_signals():
            loop.add_signal_handler(number, self._asked_to_end, number)
        self._output.on_broken = partial(loop.call_soon_threadsafe, self._unread)

    def _asked_to_end(self, number: signal.Signals) -> None:
        if not self._stop.is_set():
            self._exit_code = exit_code_of(number)
            self._say(f"{number.name}: ending")
        self._stop.set()

    def _unread(self) -> None:
        self._exit_code = 1
        self._stop.set()


def _count(question: Mapping[str, Any], name: str) -> int | None:
    """Read a number of workers; None if it isn't asked for. Raises `UsageError`."""
    value = question.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise UsageError(f"{name} must be a whole number")
