"""Random programs of faults on the memory bus and a virtual clock: nothing is lost, leaked or wrong."""

from __future__ import annotations

import asyncio
import os
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
from protocol.sampling import Sampling
from tests.support.faults import Faults
from tests.support.virtual_clock import run_virtually
from tests.support.world import GATEWAYS, PATIENT, WORKERS, Asked, World

PROMPTS = tuple(tuple(3 + (i * (i + k)) % 97 for i in range(length)) for k, length in enumerate((1, 16, 40, 77)))
MODES: tuple[tuple[int, Sampling], ...] = (
    (1, Sampling(temperature=0.0, max_tokens=24, ignore_eos=True)),
    (1, Sampling(temperature=1.0, seed=77, max_tokens=40, ignore_eos=True)),
    (3, Sampling(temperature=1.0, seed=78, max_tokens=20, ignore_eos=True)),
    (1, Sampling(temperature=0.0, max_tokens=1, ignore_eos=True)),
    (2, Sampling(temperature=0.9, seed=5, top_k=40, max_tokens=30, repetition_penalty=1.2, presence_penalty=0.3,
                 stop_token_ids=tuple(range(100, 140)), min_tokens=4, ignore_eos=True)),
)  # fmt: skip
IMPATIENT = DispatchSettings(queue_s=20.0, prefill_s=10.0, transfer_s=5.0, decode_s=20.0, max_attempts=4)
"""Requests may end by deadlines and attempts: honestly, once."""
NO_WORKER_LEFT = frozenset({"no_worker", "worker_lost", "worker_crashed"})
"""Programs kill all workers at times, and crash engines in a request's own steps."""
HONEST = NO_WORKER_LEFT | {"deadline_exceeded", "queue_full", "no_space", "transfer_failed", "unknown", "cancelled"}


@cache
def oracle(prompt: tuple[int, ...], num_choices: int, sampling: Sampling) -> list[list[int]]:
    """Each choice's tokens in an undisturbed run of one engine."""
    model = ToyModel()
    pool = PoolMemory(model.layout, 256)
    engine = Engine(model, pool, EngineSettings(64, 512, 2048, True, "toy", model.layout.dtype))
    engine.submit(Prefill(("r", 1), prompt, tuple(ChoiceTail(c) for c in range(num_choices)), sampling))
    outputs: list[list[int]] = [[] for _ in range(num_choices)]
    while engine.has_work():
        for result in engine.step().results:
            if isinstance(result, NewTokens):
                outputs[result.choice] += result.token_ids
    return outputs


worker_ids = st.sampled_from(sorted(WORKERS))
odds = st.sampled_from([0.0, 0.1, 0.4])
faults = st.builds(Faults, st.integers(0, 9999), odds, odds, odds, odds)
one_ask = st.tuples(st.sampled_from(PROMPTS), st.integers(0, len(MODES) - 1), st.sampled_from(GATEWAYS))
asks = st.tuples(st.just("ask"), st.lists(one_ask, min_size=1, max_size=4))
weather = st.one_of(faults, faults, st.none(), st.just(Faults(0, silence=True)))
hurts = st.tuples(st.sampled_from(["kill", "freeze", "crash", "drain"]), worker_ids)
short_waits = st.tuples(st.just("wait"), st.sampled_from([0.001, 0.03, 0.06, 0.2, 0.5]))
moves = st.one_of(
    *[asks] * 4,
    *[short_waits] * 5,
    *[hurts] * 3,
    st.tuples(st.just("wait"), st.sampled_from([1.0, 3.0, 8.0])),
    st.tuples(st.just("cancel"), st.integers(0, 20)),
    st.tuples(st.just("kill_gateway"), st.just(GATEWAYS[1])),
    st.tuples(st.just("faults"), weather),
)
pools = st.sampled_from([14, 24, 48])
"""Blocks of each worker: few make requests give way to each other."""
Program = list[tuple[Any, ...]]


async def run_program(patient: bool, num_blocks: int, first: Faults | None, program: Program) -> None:
    world = World(PATIENT if patient else IMPATIENT, num_blocks=num_blocks)
    await world.start(GATEWAYS)
    world.faults(first)
    for move, *details in program:
        if move == "ask":
            for prompt, mode, gateway in details[0]:
                world.ask(prompt, *MODES[mode], gateway)
        elif move == "wait":
            await asyncio.sleep(details[0])
        else:
            done = getattr(world, move)(*details)
            if done is not None:
                await done
    await world.settle()

    def want(asked: Asked) -> list[list[int]]:
        return oracle(asked.prompt, asked.num_choices, asked.sampling)

    world.check(want, NO_WORKER_LEFT if patient else HONEST)
    await world.close()


def check_programs(count: int) -> None:
    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
    @given(st.booleans(), pools, st.none() | faults, st.lists(moves, min_size=12, max_size=40))
    def check(patient: bool, num_blocks: int, first: Faults | None, program: Program) -> None:
        run_virtually(run_program(patient, num_blocks, first, program))

    check()


def test_random_programs_lose_leak_and_falsify_nothing() -> None:
    check_programs(int(os.environ.get("KVFERRY_PROGRAMS", "200")))


@pytest.mark.long
def test_ten_thousand_programs() -> None:
    check_programs(10_000)
