"""A public bug report, replayed: requests hang while workers come and go."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from gateway.errors import GatewayError
from tests.support.dispatch_rig import QUICK, Reader, Rig, rig, run, tokens

CHANGE_S = 2.0
"""A worker comes and another goes each time."""
REQUESTS_PER_S = 10
IN_A_HUNDRED = 1
"""Requests that may end with an error: four workers lost in a row, one of two every four seconds."""


class Churn:
    """Two workers of each role at any time, but never the same for long."""

    def __init__(self, rig: Rig, dice: random.Random) -> None:
        self._rig = rig
        self._dice = dice
        self.num_gone = 0

    async def newcomer(self, role: str) -> None:
        number = len(self._rig.workers) + 1
        make = self._rig.prefill if role == "prefill" else self._rig.decode
        worker = await make(f"{role}-{number}", max_num_seqs=64)
        worker.habits.token_s = 0.05

    async def go_on(self) -> None:
        while True:
            await asyncio.sleep(CHANGE_S)
            role = self._dice.choice(["prefill", "decode"])
            await self.newcomer(role)
            gone = self._dice.choice([w for w in self._rig.workers if w.status.role == role and w.habits.beats])
            self.num_gone += 1
            if self._dice.random() < 0.5:
                gone.die()
            else:
                gone.habits.beats = False
                gone.stop_working()


def replay(seed: int, num_requests: int) -> None:
    """Requests at random times; each ends with all its tokens, or as an error that says to come again."""

    async def work() -> None:
        async with rig(replace(QUICK, queue_s=60.0)) as r:
            dice = random.Random(seed)
            churn = Churn(r, dice)
            for role in ("prefill", "decode") * 2:
                await churn.newcomer(role)

            async def client() -> None:
                await asyncio.sleep(dice.random() * num_requests / REQUESTS_PER_S)
                count = dice.randrange(1, 40)
                assert await Reader(await r.submit(max_tokens=count)).all() == [tokens(0, count)]

            churning = asyncio.ensure_future(churn.go_on())
            ended = await asyncio.gather(*(client() for _ in range(num_requests)), return_exceptions=True)
            churning.cancel()
            await asyncio.gather(churning, return_exceptions=True)
            assert churn.num_gone >= num_requests / REQUESTS_PER_S / CHANGE_S - 1
            errors = [error for error in ended if error is not None]
            assert all(isinstance(error, GatewayError) and error.status == 503 for error in errors), errors
            assert len(errors) <= num_requests * IN_A_HUNDRED // 100
            kinds = sorted(o.kind for o in r.counts.outcomes)
            assert kinds == ["failed"] * len(errors) + ["finished"] * (num_requests - len(errors))
            assert max(o.num_attempts for o in r.counts.outcomes) > 1
            await r.nothing_left()

    run(work())


@pytest.mark.parametrize("seed", range(2))
def test_while_workers_come_and_go_every_request_ends(seed: int) -> None:
    """Replays dynamo #13088 in part: 1 to 2 % of the requests hung."""
    replay(seed, 400)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_none_of_1500_requests_hangs(seed: int) -> None:
    """Replays dynamo #13088: 1,500 requests, a worker gone every two seconds."""
    replay(seed, 1500)
