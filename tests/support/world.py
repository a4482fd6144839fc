"""Real workers and real dispatchers on one hub and a virtual clock, and what can happen to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.core import Model
from engine.guides import Guides
from engine.toy_model import ToyModel
from gateway.dispatch_settings import DispatchSettings
from gateway.dispatcher import GatewayDispatcher
from gateway.errors import GatewayError
from gateway.generation import Generation, Stream
from gateway.outcome import DispatchMetrics, Outcome
from protocol.messages import GatewayStatus
from protocol.sampling import Sampling, TokenLogprob
from runtime.heartbeat import Heartbeat
from runtime.identity import new_peer
from runtime.memory_bus import MemoryBus
from runtime.postbox import Postbox
from runtime.roster import Roster
from tests.support.dispatch_rig import updates_of
from tests.support.faults import Faults
from tests.support.inline_port import InlinePort
from tests.support.stack import Stack

WORKERS = {"prefill-1": "prefill", "prefill-2": "prefill", "decode-1": "decode", "decode-2": "decode"}
GATEWAYS = ("gateway-1", "gateway-2")
SEGFAULT = -11
NEVER_S = 1e6
PATIENT = DispatchSettings(queue_s=NEVER_S, prefill_s=NEVER_S, transfer_s=NEVER_S, decode_s=NEVER_S, max_attempts=1000)
"""No limit ends a request, so each one must finish: what hangs can't hide behind a deadline."""
OUTCOME_S = 600.0
"""Virtual seconds within which every request has its outcome once all faults are over."""


@dataclass
class Asked:
    """One request and what came of it."""

    prompt: tuple[int, ...]
    num_choices: int
    sampling: Sampling
    gateway: str
    tokens: list[list[int]]
    logprobs: list[list[TokenLogprob]]
    stream: Stream | None = None
    cancelled: bool = False
    error: GatewayError | None = None
    done: bool = False
    vectors: list[bytes] = field(default_factory=list)


class Outcomes(DispatchMetrics):
    """Every outcome that a dispatcher pronounced."""

    def __init__(self) -> None:
        self.all: list[Outcome] = []

    def ended(self, outcome: Outcome) -> None:
        self.all.append(outcome)


@dataclass
class Gateway:
    """One life of a gateway."""

    bus: MemoryBus
    postbox: Postbox
    roster: Roster
    dispatcher: GatewayDispatcher
    heartbeat: Heartbeat
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class World:
    """Two workers of each kind, one or more gateways."""

    def __init__(
        self,
        limits: DispatchSettings = PATIENT,
        model: Model | None = None,
        num_blocks: int = 48,
        guides: Guides | None = None,
        **worker_settings: object,
    ) -> None:
        self.limits = limits
        self.stack = Stack(
            num_blocks=num_blocks, virtual=True, model=model or ToyModel(), max_model_len=2048, guides=guides
        )
        self.worker_settings = {"max_num_batched_tokens": 32, "local_prefill_tokens": 64, **worker_settings}
        self.gateways: dict[str, Gateway] = {}
        self.asked: list[Asked] = []
        self.outcomes = Outcomes()

    async def start(self, gateways: tuple[str, ...] = GATEWAYS[:1]) -> None:
        for worker_id in WORKERS:
            await self.add(worker_id)
        for name in gateways:
            await self.add_gateway(name)
        await asyncio.sleep(1.5)

    async def add(self, worker_id: str) -> None:
        await self.stack.add(WORKERS[worker_id], worker_id, **self.worker_settings)

    async def add_gateway(self, name: str) -> None:
        bus = MemoryBus(self.stack.hub)
        postbox = Postbox(bus, new_peer(name))
        roster = Roster(postbox)
        dispatcher = GatewayDispatcher(postbox, roster, self.limits, self.outcomes)
        await postbox.open()
        heartbeat = Heartbeat(postbox, lambda: GatewayStatus("", 0))
        heartbeat.start()
        self.gateways[name] = Gateway(bus, postbox, roster, dispatcher, heartbeat)

    # -- requests --------------------------------------------------------------------------------------

    def ask(
        self, prompt: tuple[int, ...], num_choices: int, sampling: Sampling, gateway: str = GATEWAYS[0]
    ) -> Asked | None:
        """Submit and follow; nobody answers at a gateway that is gone."""
        there = self.gateways.get(gateway)
        if there is None:
            return None
        tokens: list[list[int]] = [[] for _ in range(num_choices)]
        logprobs: list[list[TokenLogprob]] = [[] for _ in range(num_choices)]
        asked = Asked(prompt, num_choices, sampling, gateway, tokens, logprobs)
        self.asked.append(asked)
        there.tasks.append(asyncio.ensure_future(self._follow(there, asked)))
        return asked

    async def _follow(self, gateway: Gateway, asked: Asked) -> None:
        try:
            generation = Generation(asked.prompt, asked.num_choices, asked.sampling)
            asked.stream = await gateway.dispatcher.submit(generation)
            if asked.cancelled:
                asked.stream.cancel("program")
            async for update in updates_of(asked.stream):
                assert update.first_index == len(asked.tokens[update.choice])
                asked.tokens[update.choice] += update.token_ids
                asked.logprobs[update.choice] += update.logprobs
                asked.vectors += [update.vector] if update.vector else []
        except GatewayError as error:
            asked.error = error
        asked.done = True

    def cancel(self, number: int) -> None:
        if self.asked:
            asked = self.asked[number % len(self.asked)]
            asked.cancelled = True
            if asked.stream is not None and asked.gateway in self.gateways:
                asked.stream.cancel("program")

    # -- faults ----------------------------------------------------------------------------------------

    def port(self, worker_id: str) -> InlinePort | None:
        node = self.stack.nodes.get(worker_id)
        if node is None:
            return None
        assert isinstance(node.node.engine, InlinePort)
        return node.node.engine

    async def kill(self, worker_id: str) -> None:
        """Kill a worker without a word, or start it again."""
        if worker_id in self.stack.nodes:
            await self.stack.remove(worker_id)
        else:
            await self.add(worker_id)

    async def crash(self, worker_id: str) -> None:
        """The engine ends by itself; the worker says so and ends too."""
        port = self.port(worker_id)
        if port is not None and not port.frozen:
            port.die(SEGFAULT)
            await self.stack.leave(worker_id)

    async def drain(self, worker_id: str) -> None:
        """The worker is told to end and has no time to finish. One that was stopped hears nothing."""
        port = self.port(worker_id)
        if port is not None and not port.frozen:
            await self.stack.leave(worker_id)

    def freeze(self, worker_id: str) -> None:
        """Stop a worker as SIGSTOP does, or let it go on."""
        port = self.port(worker_id)
        if port is None:
            return
        buses = self.stack.buses(worker_id)
        if port.frozen:
            for bus in buses:
                self.stack.hub.restore(bus)
            port.thaw()
        else:
            port.frozen = True
            for bus in buses:
                self.stack.hub.cut(bus)

    async def kill_gateway(self, name: str) -> None:
        """Kill a gateway without a word, or start it again; its streams are gone with it."""
        gone = self.gateways.pop(name, None)
        if gone is None:
            await self.add_gateway(name)
            return
        gone.postbox.close()
        for task in gone.tasks:
            task.cancel()
        await asyncio.gather(*gone.tasks, return_exceptions=True)
        gone.dispatcher.close()
        gone.roster.close()
        if gone.heartbeat._task is not None:
            gone.heartbeat._task.cancel()
        await gone.bus.close()
        self.asked = [asked for asked in self.asked if asked.gateway != name or asked.done]

    def faults(self, faults: Faults | None) -> None:
        self.stack.hub.filter = faults.filter if faults else None
        self.stack.hub.delay = faults.delay if faults else None

    # -- the end ---------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """All faults over, every worker back: then everything ends, and nothing is left."""
        self.faults(None)
        for worker_id in WORKERS:
            port = self.port(worker_id)
            if port is None:
                await self.add(worker_id)
            elif port.frozen:
                self.freeze(worker_id)
        async with asyncio.timeout(OUTCOME_S):
            await asyncio.gather(*(task for gateway in self.gateways.values() for task in gateway.tasks))
            for gateway in self.gateways.values():
                while any(gateway.dispatcher.counts().values()):
                    await asyncio.sleep(1.0)
            await self.stack.idle(within_s=OUTCOME_S)

    def check(self, want: Callable[[Asked], list[list[int]]], allowed: frozenset[str]) -> None:
        """One outcome a request; what finished is right, what didn't is a beginning of it, with an ``allowed`` code."""
        ids = [outcome.request_id for outcome in self.outcomes.all]
        assert len(ids) == len(set(ids)) >= len(self.asked)
        for asked in self.asked:
            whole = want(asked)
            if asked.error is None and not asked.cancelled:
                assert asked.tokens == whole
            for have, full in zip(asked.tokens, whole, strict=True):
                assert have == full[: len(have)]
            if asked.error is not None and not asked.cancelled:
                assert asked.error.code in allowed, (asked.error, asked.error.code)
        for node in self.stack.nodes.values():
            node.engine.check()

    async def close(self) -> None:
        for name in list(self.gateways):
            await self.kill_gateway(name)
        await self.stack.close()
