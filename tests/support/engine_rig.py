"""An engine on the toy model, driven by hand: submit, run until idle, read the tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from engine.api import (
    Adopt,
    ChoiceTail,
    Command,
    Computed,
    Grant,
    Granted,
    Key,
    Load,
    NewTokens,
    Prefill,
    Release,
    Reserve,
    Result,
)
from engine.core import Engine, EngineSettings
from engine.guides import Guides
from engine.loop import NEWS_S
from engine.model import Model
from engine.pool_memory import PoolMemory
from engine.staging import Staging
from engine.toy_model import ToyModel
from protocol.block_hash import chain_hashes, root_hash
from protocol.sampling import Sampling

MODEL = ToyModel()
GREEDY = Sampling(temperature=0.0, max_tokens=24)
SEEDED = Sampling(temperature=0.9, top_p=0.95, seed=0x1234_5678_9ABC_DEF0, max_tokens=24)
MAX_STEPS = 5000
KEY: Key = ("k", 0)

R = TypeVar("R")


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    """Token ids that look like noise and differ by seed from the first one on."""
    return tuple((seed * 131 + 7 + i * i * 31 + i * (seed + 3)) % 512 for i in range(length))


def tails(*token_ids: Sequence[int]) -> tuple[ChoiceTail, ...]:
    """Choices 0, 1, 2 and so on with these tails."""
    return tuple(ChoiceTail(i, tuple(ids)) for i, ids in enumerate(token_ids))


def prefill(length: int = 40, sampling: Sampling = GREEDY, *, hand_over: bool = False) -> Prefill:
    """A request of one choice under ``KEY``."""
    return Prefill(KEY, prompt(length), tails(()), sampling, hand_over=hand_over)


class Rig:
    """One engine, its pool, and everything that it has reported."""

    def __init__(
        self,
        num_blocks: int = 96,
        *,
        seqs: int = 16,
        tokens: int = 64,
        max_len: int = 1024,
        caching: bool = True,
        model: Model = MODEL,
        recompute: int = -1,
        staging: Callable[[PoolMemory], Staging] = Staging,
        guides: Guides | None = None,
    ) -> None:
        self.memory = PoolMemory(model.layout, num_blocks)
        settings = EngineSettings(seqs, tokens, max_len, caching, "toy", "float32", recompute)
        self.engine = Engine(model, self.memory, settings, staging(self.memory), guides=guides)
        self.results: list[Result] = []

    def submit(self, *commands: Command) -> None:
        for command in commands:
            self.engine.submit(command)

    def step(self) -> list[Result]:
        """One step, with the books checked after it."""
        results = list(self.engine.step().results)
        self.results += results
        self.engine.check()
        return results

    def run(self, *commands: Command) -> list[Result]:
        """Submit, then step until there is nothing to do; what was reported meanwhile."""
        self.submit(*commands)
        results: list[Result] = []
        for _ in range(MAX_STEPS):
            if self.engine.has_work():
                results += self.step()
            elif not self.engine.expects_news:
                return results
            else:
                time.sleep(NEWS_S)
        raise AssertionError("the engine doesn't come to an end")

    @property
    def load(self) -> Load:
        report = self.engine.report()
        self.results += report.results
        return report.load

    def tokens(self, key: Key, choice: int = 0) -> list[int]:
        """All tokens reported for a choice, checked to follow one another."""
        return tokens_of(self.results, key, choice)

    def assert_empty(self) -> None:
        """Nothing is held or promised, and the books add up."""
        self.engine.check()
        load = self.load
        assert (load.held_blocks, load.reserved_blocks) == (0, 0)
        assert load.free_blocks + load.cached_blocks == load.total_blocks
        assert (load.num_running, load.num_waiting) == (0, 0)


def tokens_of(results: Iterable[Result], key: Key, choice: int = 0) -> list[int]:
    ids: list[int] = []
    start: int | None = None
    for result in results:
        if isinstance(result, NewTokens) and (result.key, result.choice) == (key, choice):
            start = result.first_index if start is None else start
            assert result.first_index == start + len(ids)
            ids += result.token_ids
    return ids


def only(results: Iterable[Result], kind: type[R]) -> list[R]:
    return [result for result in results if isinstance(result, kind)]


def generate(
    rig: Rig,
    prompt_ids: Sequence[int],
    sampling: Sampling = GREEDY,
    *,
    choices: tuple[ChoiceTail, ...] = (ChoiceTail(0),),
    name: str = "g",
) -> list[list[int]]:
    """Run one request alone; what each choice made."""
    key = (name, 0)
    results = rig.run(Prefill(key, tuple(prompt_ids), choices, sampling))
    return [tokens_of(results, key, choice.choice) for choice in choices]


def copy_block(source: PoolMemory, block: int, target: PoolMemory, to: int) -> None:
    """What a transfer does: one block's bytes from pool to pool, in every layer."""
    for ours, theirs in zip(source.layers(0), target.layers(0), strict=True):
        theirs.k[to] = ours.k[block]
        theirs.v[to] = ours.v[block]


def names(prompt_ids: Sequence[int], salt: str = "") -> tuple[bytes, ...]:
    """Names of full blocks, as a gateway or a prefill worker computes them."""
    return tuple(chain_hashes(root_hash("toy", "float32", salt=salt), list(prompt_ids)))


class HandOver:
    """One hand-over from engine ``p`` to engine ``d``, with io's part played by hand."""

    def __init__(
        self,
        p: Rig,
        d: Rig,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        choices: tuple[ChoiceTail, ...] = (ChoiceTail(0),),
        name: str = "h",
    ) -> None:
        self.p, self.d, self.key = p, d, (name, 0)
        self.prompt_ids, self.sampling, self.choices = tuple(prompt_ids), sampling, choices
        self.granted: Granted | None = None
        self.num_copied = 0

    @property
    def lens(self) -> tuple[int, ...]:
        return tuple(len(choice.token_ids) for choice in self.choices)

    def reserve(self) -> Result:
        command = Reserve(self.key, len(self.prompt_ids), self.lens, self.sampling.max_tokens)
        return self.d.run(command)[0]

    def grant_command(self, expected_tokens: int | None = None) -> Grant:
        trunk = list(self.prompt_ids)
        if len(self.choices) == 1:
            trunk += self.choices[0].token_ids
        numbers = tuple(choice.choice for choice in self.choices)
        counts = (len(self.prompt_ids), self.lens, expected_tokens or self.sampling.max_tokens)
        return Grant(self.key, *counts, names(trunk), numbers)

    def grant(self, expected_tokens: int | None = None) -> Result:
        answer = self.d.run(self.grant_command(expected_tokens))[-1]
        if isinstance(answer, Granted):
            self.granted = answer
        return answer

    def prefill(self) -> list[Result]:
        command = Prefill(self.key, self.prompt_ids, self.choices, self.sampling, hand_over=True)
        return self.p.run(command)

    def ship(self, results: Iterable[Result]) -> None:
        """Copy what the prefill engine reported last of each branch, but not what D has already."""
        assert self.granted is not None
        newest = {r.choice: r for r in only(results, Computed)}
        numbers = [choice.choice for choice in self.choices]
        for number, computed in newest.items():
            target = self.granted.trunk
            skip = self.granted.num_cached_tokens // 16
            if number >= 0:
                target, skip = self.granted.branches[numbers.index(number)], 0
            assert len(computed.blocks) == len(target) or not computed.last
            pairs = list(zip(computed.blocks, target, strict=False))
            for source, to in pairs[skip:]:
                copy_block(self.p.memory, source, self.d.memory, to)
                self.num_copied += 1

    def adopt_command(self, results: Iterable[Result]) -> Adopt:
        """The record: live choices with the token that P made."""
        live = [
            ChoiceTail(c.choice, (*c.token_ids, *tokens_of(results, self.key, c.choice)))
            for c in self.choices
            if not any(r.finish_reason for r in only(results, NewTokens) if r.choice == c.choice)
        ]
        return Adopt(self.key, self.prompt_ids, tuple(live), self.sampling)

    def whole(self) -> list[list[int]]:
        """Reserve, grant, send, adopt, release; all tokens that P and D made, by choice."""
        self.reserve()
        assert isinstance(self.grant(), Granted)
        made = self.prefill()
        self.ship(made)
        decoded = self.d.run(self.adopt_command(made))
        self.p.run(Release(self.key))
        return [tokens_of(made, self.key, c.choice) + tokens_of(decoded, self.key, c.choice) for c in self.choices]
