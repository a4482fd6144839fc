"""A prefill and a decode engine under random commands: books add up all along, and tokens stay right."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from engine.api import (
    Broken,
    Computed,
    Granted,
    NewTokens,
    Prefill,
    Rejected,
    Release,
    Released,
    Result,
    StopChoice,
)
from engine.copy_stream import LateStream
from engine.pool_memory import PoolMemory
from engine.staging import Staging
from protocol.sampling import Sampling
from tests.support.engine_rig import SEEDED, HandOver, Rig, generate, only, prompt, tails

NUM_ACTIONS = 120
LENGTHS = (3, 16, 33, 60)
SAMPLING = replace(SEEDED, max_tokens=40)
TRUTH: dict[int, list[list[int]]] = {}


def truth(length: int) -> list[list[int]]:
    """What three choices of that prompt make when nothing else runs."""
    if length not in TRUTH:
        TRUTH[length] = generate(Rig(), prompt(length), SAMPLING, choices=tails((), (), ()))
    return TRUTH[length]


@dataclass
class Life:
    """One request on its way, and what it has made by choice."""

    hand_over: HandOver
    sampling: Sampling
    length: int
    local: bool
    made: dict[int, list[int]] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    prefilled: list[Result] = field(default_factory=list)
    adopted: bool = False


def apart(memory: PoolMemory) -> Staging:
    """A device whose copies take their time, more or less by the pool's size."""
    return Staging(memory, apart=True, stream=LateStream(memory.num_blocks % 7))


class World:
    """Both engines, and io's part between them."""

    def __init__(self, seed: int, staging: Callable[[PoolMemory], Staging]) -> None:
        self.random = random.Random(seed)
        caching = self.random.random() < 0.8
        self.p = Rig(self.random.choice([16, 40]), seqs=4, tokens=24, caching=caching, staging=staging)
        self.d = Rig(self.random.choice([9, 12, 16, 40]), seqs=5, tokens=24, caching=caching, staging=staging)
        self.lives: dict[tuple[str, int], Life] = {}
        self.count = 0
        self.num_checked = 0

    def act(self) -> None:
        action = self.random.choices([self.begin, self.step_p, self.step_d, self.stop, self.release], [6, 6, 12, 1, 1])[
            0
        ]
        action()

    def begin(self) -> None:
        pick = self.random
        self.count += 1
        length = pick.choice(LENGTHS)
        cuts = [pick.choice([0, 0, 5, 20]) for _ in range(pick.choice([1, 1, 3]))]
        given = tails(*(truth(length)[i][:cut] for i, cut in enumerate(cuts)))
        stops = (truth(length)[0][30],) if pick.random() < 0.3 else ()
        sampling = replace(SAMPLING, stop_token_ids=stops)
        hand_over = HandOver(self.p, self.d, prompt(length), sampling, given, f"r{self.count}")
        life = Life(hand_over, sampling, length, local=pick.random() < 0.4)
        if life.local:
            self.lives[hand_over.key] = life
            self.d.submit(Prefill(hand_over.key, prompt(length), given, sampling))
            return
        answers = [self.answer(hand_over.grant_command(pick.choice([None, 1, 1])))]
        if isinstance(answers[0], Granted):
            hand_over.granted = answers[0]
            self.lives[hand_over.key] = life
            self.p.submit(Prefill(hand_over.key, prompt(length), given, sampling, hand_over=True))

    def answer(self, command: object) -> Result:
        """Submit to D and fetch the answer without a step."""
        self.d.submit(command)  # type: ignore[arg-type]
        results = self.d.engine.report().results
        self.take(results, on_d=True)
        return results[-1]

    def step_p(self) -> None:
        if self.p.engine.has_work():
            self.take(self.p.step(), on_d=False)
        for life in list(self.lives.values()):
            self.maybe_adopt(life)

    def step_d(self) -> None:
        if self.d.engine.has_work():
            self.take(self.d.step(), on_d=True)

    def maybe_adopt(self, life: Life) -> None:
        """Once every choice has its first token: ship, adopt, and let P go."""
        sampled = {r.choice for r in only(life.prefilled, NewTokens)}
        if life.local or life.adopted or len(sampled) < len(life.hand_over.choices):
            return
        life.adopted = True
        life.hand_over.ship(life.prefilled)
        adopt = life.hand_over.adopt_command(life.prefilled)
        self.d.submit(adopt if adopt.tails else Release(life.hand_over.key))
        self.p.submit(Release(life.hand_over.key))

    def take(self, results: object, *, on_d: bool) -> None:
        for result in results:  # type: ignore[attr-defined]
            assert not isinstance(result, Broken), result
            life = self.lives.get(result.key)
            if life is None:
                continue
            if isinstance(result, Rejected):
                assert result.code in ("never_fits", "no_space")
                del self.lives[result.key]
                self.p.submit(Release(result.key))
            if isinstance(result, Computed | NewTokens) and not on_d:
                life.prefilled.append(result)
            if isinstance(result, NewTokens):
                self.check_tokens(life, result)
            if isinstance(result, Released) and on_d:
                del self.lives[result.key]

    def check_tokens(self, life: Life, result: NewTokens) -> None:
        expected = truth(life.length)[result.choice]
        end = result.first_index + len(result.token_ids)
        assert list(result.token_ids) == expected[result.first_index : end]
        assert result.choice not in life.finished
        self.num_checked += len(result.token_ids)
        if result.finish_reason:
            life.finished.add(result.choice)
            stopped = result.token_ids[-1] in life.sampling.stop_token_ids
            assert result.finish_reason == ("stop" if stopped else "length")
            assert stopped or end == SAMPLING.max_tokens

    def pick(self) -> HandOver | None:
        if not self.lives:
            return None
        return self.random.choice(list(self.lives.values())).hand_over

    def stop(self) -> None:
        hand_over = self.pick()
        if hand_over is not None and not self.lives[hand_over.key].prefilled:
            choice = self.random.choice(hand_over.choices)
            # Only where the whole request runs on one engine: io sees to the rest.
            if self.lives[hand_over.key].local:
                self.d.submit(StopChoice(hand_over.key, choice.choice))

    def release(self) -> None:
        hand_over = self.pick()
        if hand_over is not None:
            del self.lives[hand_over.key]
            self.p.submit(Release(hand_over.key))
            self.d.submit(Release(hand_over.key))

    def settle(self) -> None:
        """No new requests: everything that is here must come to its end."""
        for _ in range(3000):
            if not any(rig.engine.has_work() or rig.engine.expects_news for rig in (self.p, self.d)):
                break
            self.step_p()
            self.step_d()
        assert not self.lives, "somebody never ended"


@pytest.mark.parametrize("staging", [Staging, apart])
@pytest.mark.parametrize("seed", range(24))
def test_random_commands_leave_right_tokens_and_empty_books(
    seed: int, staging: Callable[[PoolMemory], Staging]
) -> None:
    world = World(seed, staging)
    for _ in range(NUM_ACTIONS):
        world.act()
    world.settle()
    assert world.num_checked > 50
    world.p.assert_empty()
    world.d.assert_empty()
