"""The prefill worker dies in each state of its hand-over: the answer is that of an undisturbed run."""

from __future__ import annotations

import asyncio

import pytest

from prefill_svc.service import PrefillWorker
from protocol.handover import State
from tests.handover.test_programs import MODES, PROMPTS, oracle
from tests.support.virtual_clock import run_virtually
from tests.support.world import World

LOOK_S = 0.0005
PATIENCE_S = 30.0


def state_of_job(world: World, worker_id: str) -> State | None:
    """Where the only hand-over of a prefill worker stands; ``None`` if it has none."""
    worker = world.stack.nodes[worker_id].worker
    assert isinstance(worker, PrefillWorker)
    states = [State(worker.state_of(key)) for key in worker.held]
    return states[0] if states else None


@pytest.mark.parametrize("mode", [1, 2], ids=["one choice", "three choices"])
@pytest.mark.parametrize("state", [State.OFFERED, State.GRANTED, State.SENDING, State.COMPLETE])
def test_the_answer_is_that_of_an_undisturbed_run(state: State, mode: int) -> None:
    """Replays vllm #35943."""

    async def check() -> None:
        world = World()
        await world.start()
        world.stack.hub.delay = lambda subject, payload: 0.004  # so that each state can be seen
        asked = world.ask(PROMPTS[3], *MODES[mode])
        assert asked is not None
        async with asyncio.timeout(PATIENCE_S):
            victim = None
            while victim is None:
                seen = {p: state_of_job(world, p) for p in ("prefill-1", "prefill-2")}
                victim = next((p for p, found in seen.items() if found is state), None)
                await asyncio.sleep(LOOK_S)
        await world.kill(victim)
        await world.gateways["gateway-1"].tasks[0]
        assert asked.error is None
        assert asked.tokens == oracle(PROMPTS[3], *MODES[mode])
        await world.settle()
        await world.close()

    run_virtually(check())
