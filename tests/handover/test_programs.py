"""Random programs of faults on the memory bus and a virtual clock: nothing is lost, leaked or wrong."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.api import ChoiceTail, NewTokens, Prefill
from engine.core import Engine
from engine.pool_memory import PoolMemory
from engine.settings import EngineSettings
from engine.toy_model import ToyModel
from gateway.dispatch_settings import DispatchSettings
from gateway.dispatcher import GatewayDispatcher
from gateway.errors import GatewayError
from gateway.generation import Generation, Stream
from gateway.outcome import DispatchMetrics, Outcome
from kvtransfer.pieces import HEADER_BYTES
from protocol.messages import GatewayStatus
from protocol.sampling import Sampling
from runtime.heartbeat import Heartbeat
from runtime.identity import new_peer
from runtime.memory_bus import MemoryBus
from runtime.postbox import Postbox
from runtime.roster import Roster
from tests.support.inline_port import InlinePort
from tests.support.stack import Stack
from tests.support.virtual_clock import VirtualLoop

WORKERS = {"prefill-1": "prefill", "prefill-2": "prefill", "decode-1": "decode", "decode-2": "decode"}
PROMPTS = tuple(tuple(3 + (i * (i + k)) % 97 for i in range(length)) for k, length in enumerate((1, 16, 40, 77)))
MODES: tuple[tuple[int, Sampling], ...] = (
    (1, Sampling(temperature=0.0, max_tokens=24, ignore_eos=True)),
    (1, Sampling(temperature=1.0, seed=77, max_tokens=40, ignore_eos=True)),
    (3, Sampling(temperature=1.0, seed=78, max_tokens=20, ignore_eos=True)),
    (1, Sampling(temperature=0.0, max_tokens=1, ignore_eos=True)),
    (2, Sampling(temperature=0.9, seed=5, top_k=40, max_tokens=30, repetition_penalty=1.2, presence_penalty=0.3,
                 stop_token_ids=tuple(range(100, 140)), min_tokens=4, ignore_eos=True)),
)  # fmt: skip
NUM_BLOCKS = 48
IMPATIENT = DispatchSettings(queue_s=20.0, prefill_s=10.0, transfer_s=5.0, decode_s=20.0, max_attempts=4)
"""Requests may end by deadlines and attempts: honestly, once."""
NEVER_S = 1e6
PATIENT = DispatchSettings(queue_s=NEVER_S, prefill_s=NEVER_S, transfer_s=NEVER_S, decode_s=NEVER_S, max_attempts=1000)
"""No limit ends a request, so each one must finish: what hangs can't hide behind a deadline."""
OUTCOME_S = 600.0
"""Virtual seconds within which every request has its outcome once all faults are over."""


@cache
def oracle(prompt: int, mode: int) -> list[list[int]]:
    """Each choice's tokens in an undisturbed run of one engine."""
    model = ToyModel()
    num_choices, sampling = MODES[mode]
    pool = PoolMemory(model.layout, 256)
    engine = Engine(model, pool, EngineSettings(64, 512, 4096, True, "toy", model.layout.dtype))
    engine.submit(Prefill(("r", 1), PROMPTS[prompt], tuple(ChoiceTail(c) for c in range(num_choices)), sampling))
    outputs: list[list[int]] = [[] for _ in range(num_choices)]
    while engine.has_work():
        for result in engine.step().results:
            if isinstance(result, NewTokens):
                outputs[result.choice] += result.token_ids
    return outputs


@dataclass
class Asked:
    """One request of a program and what came of it."""

    prompt: int
    mode: int
    tokens: list[list[int]]
    stream: Stream | None = None
    cancelled: bool = False
    error: GatewayError | None = None
    done: bool = False


class Outcomes(DispatchMetrics):
    def __init__(self) -> None:
        self.all: list[Outcome] = []

    def ended(self, outcome: Outcome) -> None:
        self.all.append(outcome)


@dataclass
class Faults:
    """What happens to messages; pieces may be damaged too."""

    seed: int
    lose: float = 0.0
    double: float = 0.0
    late: float = 0.0
    damage: float = 0.0
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def filter(self, subject: str, payload: bytes) -> Iterator[bytes]:
        if "contents" in subject and self.random.random() < self.damage:
            payload = self._damaged(payload)
        if "heartbeat" in subject or self.random.random() >= self.lose:
            yield payload
        if self.random.random() < self.double:
            yield payload

    def _damaged(self, payload: bytes) -> bytes:
        """Another byte somewhere in the header, or another half of the contents."""
        damaged = bytearray(payload)
        if self.random.random() < 0.3:
            damaged[self.random.randrange(HEADER_BYTES)] ^= 1 << self.random.randrange(8)
        else:
            middle = (HEADER_BYTES + len(payload)) // 2
            damaged[middle:] = self.random.randbytes(len(payload) - middle)
        return bytes(damaged)

    def delay(self, subject: str, payload: bytes) -> float:
        return self.random.expovariate(2.0) if self.random.random() < self.late else 0.0


class World:
    """Four workers and a gateway on one hub."""

    def __init__(self, patient: bool) -> None:
        self.patient = patient
        self.stack = Stack(num_blocks=NUM_BLOCKS, virtual=True)
        self.asked: list[Asked] = []
        self.outcomes = Outcomes()
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        for worker_id in WORKERS:
            await self.add(worker_id)
        self.bus = MemoryBus(self.stack.hub)
        self.postbox = Postbox(self.bus, new_peer("gateway-1"))
        self.roster = Roster(self.postbox)
        self.dispatcher = GatewayDispatcher(
            self.postbox, self.roster, PATIENT if self.patient else IMPATIENT, self.outcomes
        )
        await self.postbox.open()
        self.heartbeat = Heartbeat(self.postbox, lambda: GatewayStatus("", 0))
        self.heartbeat.start()
        await asyncio.sleep(1.5)

    async def add(self, worker_id: str) -> None:
        await self.stack.add(WORKERS[worker_id], worker_id, max_num_batched_tokens=32, local_prefill_tokens=64)

    def ask(self, prompt: int, mode: int) -> None:
        asked = Asked(prompt, mode, [[] for _ in range(MODES[mode][0])])
        self.asked.append(asked)
        self.tasks.append(asyncio.ensure_future(self._follow(asked)))

    async def _follow(self, asked: Asked) -> None:
        num_choices, sampling = MODES[asked.mode]
        try:
            generation = Generation(PROMPTS[asked.prompt], num_choices, sampling)
            asked.stream = await self.dispatcher.submit(generation)
            if asked.cancelled:
                asked.stream.cancel("program")
            async for update in asked.stream.updates():
                assert update.first_index == len(asked.tokens[update.choice])
                asked.tokens[update.choice] += update.token_ids
        except GatewayError as error:
            asked.error = error
        asked.done = True

    def cancel(self, number: int) -> None:
        if self.asked:
            asked = self.asked[number % len(self.asked)]
            asked.cancelled = True
            if asked.stream is not None:
                asked.stream.cancel("program")

    async def kill(self, worker_id: str) -> None:
        if worker_id in self.stack.nodes:
            await self.stack.remove(worker_id)
        else:
            await self.add(worker_id)

    def freeze(self, worker_id: str) -> None:
        node = self.stack.nodes.get(worker_id)
        if node is None:
            return
        port = node.node.engine
        assert isinstance(port, InlinePort)
        if port.frozen:
            self.stack.hub.restore(node.node.postbox.bus)
            port.thaw()
        else:
            port.frozen = True
            self.stack.hub.cut(node.node.postbox.bus)

    def faults(self, faults: Faults | None) -> None:
        self.stack.hub.filter = faults.filter if faults else None
        self.stack.hub.delay = faults.delay if faults else None

    async def settle(self) -> None:
        """All faults over, every worker back: then everything ends, and nothing is left."""
        self.faults(None)
        for worker_id in WORKERS:
            node = self.stack.nodes.get(worker_id)
            if node is None:
                await self.add(worker_id)
            elif isinstance(node.node.engine, InlinePort) and node.node.engine.frozen:
                self.freeze(worker_id)
        async with asyncio.timeout(OUTCOME_S):
            await asyncio.gather(*self.tasks)
            while any(self.dispatcher.counts().values()):
                await asyncio.sleep(1.0)
            await self.stack.idle(within_s=OUTCOME_S)

    def check(self) -> None:
        assert len(self.outcomes.all) == len(self.asked)
        assert len({outcome.request_id for outcome in self.outcomes.all}) == len(self.asked)
        for asked in self.asked:
            want = oracle(asked.prompt, asked.mode)
            if self.patient and not asked.cancelled:
                assert asked.error is None, asked.error
            if asked.error is None and not asked.cancelled:
                assert asked.tokens == want
            for have, whole in zip(asked.tokens, want, strict=True):
                assert have == whole[: len(have)]
        for node in self.stack.nodes.values():
            node.engine.check()

    async def close(self) -> None:
        await self.heartbeat.stop()
        self.dispatcher.close()
        self.roster.close()
        self.postbox.close()
        await self.bus.close()
        await self.stack.close()


worker_ids = st.sampled_from(sorted(WORKERS))
odds = st.sampled_from([0.0, 0.1, 0.4])
asks = st.tuples(st.just("ask"), st.integers(0, len(PROMPTS) - 1), st.integers(0, len(MODES) - 1))
faults = st.builds(Faults, st.integers(0, 9999), odds, odds, odds, odds)
moves = st.one_of(
    asks,
    asks,
    asks,
    st.tuples(st.just("wait"), st.sampled_from([0.001, 0.03, 0.06, 0.2, 1.0, 3.0, 8.0])),
    st.tuples(st.just("wait"), st.sampled_from([0.001, 0.03, 0.06, 0.2])),
    st.tuples(st.just("cancel"), st.integers(0, 20)),
    st.tuples(st.just("kill"), worker_ids),
    st.tuples(st.just("freeze"), worker_ids),
    st.tuples(st.just("faults"), faults),
    st.tuples(st.just("calm")),
)
Program = list[tuple[Any, ...]]


async def run_program(patient: bool, weather: Faults | None, program: Program) -> None:
    world = World(patient)
    await world.start()
    world.faults(weather)
    for move, *details in program:
        if move == "ask":
            world.ask(*details)
        elif move == "wait":
            await asyncio.sleep(details[0])
        elif move == "cancel":
            world.cancel(*details)
        elif move == "kill":
            await world.kill(*details)
        elif move == "freeze":
            world.freeze(*details)
        else:
            world.faults(details[0] if details else None)
    await world.settle()
    world.check()
    await world.close()


def run_virtually(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work)


def check_programs(count: int) -> None:
    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
    @given(st.booleans(), st.none() | faults, st.lists(moves, min_size=12, max_size=40))
    def check(patient: bool, weather: Faults | None, program: Program) -> None:
        run_virtually(run_program(patient, weather, program))

    check()


def test_random_programs_lose_leak_and_falsify_nothing() -> None:
    check_programs(int(os.environ.get("KVFERRY_PROGRAMS", "500")))


@pytest.mark.long
def test_ten_thousand_programs() -> None:
    check_programs(10_000)
