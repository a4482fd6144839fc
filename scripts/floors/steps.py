"""The engine's steps, timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from engine.api import ChoiceTail, Key, NewTokens, Prefill, Report
from engine.core import Engine, EngineSettings
from engine.layout import BLOCK_SIZE
from engine.llama import LlamaModel
from engine.pool_memory import PoolMemory
from protocol.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, found: Sequence[float]) -> Times:
        """Put single times together."""
        return cls(statistics.median(found), min(found), max(found))


class Decoding:
    """An engine with ``batch`` sequences of ``context`` tokens that all decode, none sharing a block with another."""

    def __init__(self, model: LlamaModel, batch: int, context: int, num_steps: int, chunk: int = 512) -> None:
        """Compute the prompts, ``chunk`` tokens a step; no more than ``num_steps`` steps follow."""
        self.batch, self.context = batch, context
        self.times: list[float] = []
        self.chunk_times: dict[int, float] = {}
        """Milliseconds of the step of a full chunk, by the tokens that were computed after it (one sequence)."""
        tokens = num_steps + 8 + batch * (-(-context // chunk))  # the first go on while the last are computed
        self._engine = _engine(model, batch * ((context + tokens) // BLOCK_SIZE + 2), chunk)
        sampling = Sampling(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        for number in range(batch):
            self._engine.submit(_prefill(number, context, sampling))
        begun: set[Key] = set()
        while len(begun) < batch:
            took, report = timed_step(self._engine)
            self.chunk_times[len(self.chunk_times) * chunk + chunk] = took
            begun |= {result.key for result in report.results if isinstance(result, NewTokens)}
        self._num_made = self._engine.report().load.tokens_made
        self.settle()

    def settle(self) -> None:
        """Do a step that isn't timed."""
        self._num_made += self.batch
        self._engine.step()

    def step(self) -> None:
        """Time one step."""
        self._num_made += self.batch
        self.times.append(timed_step(self._engine)[0])

    @property
    def mean_context(self) -> float:
        """Tokens of a sequence, over all timed steps so far."""
        timed = self.batch * len(self.times)
        return self.context + (self._num_made - timed / 2) / self.batch


class Prefilling:
    """An engine that computes one prompt after another, each of ``length`` tokens, whole in one step."""

    def __init__(self, model: LlamaModel, length: int) -> None:
        """Compute one that isn't timed."""
        self.length = length
        self.times: list[float] = []
        self._engine = _engine(model, 3 * (length // BLOCK_SIZE + 2), length)
        self._number = 0
        self.step()
        self.times.clear()

    def step(self) -> None:
        """Time one prompt, to its first token."""
        self._number += 1
        sampling = Sampling(temperature=0.0, max_tokens=1, ignore_eos=True)
        self._engine.submit(_prefill(self._number, self.length, sampling))
        took, report = timed_step(self._engine)
        self.times.append(took)
        if report.load.tokens_made != self._number:
            raise RuntimeError(f"{self.length} tokens took more than one step")


def timed_step(engine: Engine) -> tuple[float, Report]:
    """Milliseconds of one step (plan, model, sampling, report), and what it reported."""
    start = time.perf_counter()
    report = engine.step()
    return (time.perf_counter() - start) * 1000, report


def _engine(model: LlamaModel, num_blocks: int, num_batched_tokens: int) -> Engine:
    settings = EngineSettings(
        max_num_seqs=64,
        max_num_batched_tokens=num_batched_tokens,
        max_model_len=model.max_model_len,
        enable_prefix_caching=False,
    )
    return Engine(model, PoolMemory(model.layout, num_blocks), settings)


def _prefill(number: int, length: int, sampling: Sampling) -> Prefill:
    prompt = tuple(3 + (number * 131 + 7 * i) % 40_000 for i in range(length))
    return Prefill((f"r{number}", 1), prompt, (ChoiceTail(0),), sampling)
