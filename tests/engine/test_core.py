"""The engine lives through failing steps, and refuses what it can't work with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.api import (
    Broken,
    NewTokens,
    Prefill,
)
from engine.core import Engine, EngineSettings
from engine.errors import BrokenPromise
from engine.pool_memory import PoolMemory
from engine.toy_model import ToyModel
from tests.support.engine_rig import (
    GREEDY,
    KEY,
    MODEL,
    Rig,
    generate,
    only,
    prefill,
    prompt,
    tails,
)


class Faulty(ToyModel):
    """Fails while ``bad`` is in a batch."""

    bad = 500

    def forward(self, batch: Any, cache: Any, on_layers: Any) -> torch.Tensor:
        if self.bad in batch.token_ids.tolist():
            raise RuntimeError("the device said no")
        return super().forward(batch, cache, on_layers)


def test_a_failing_step_breaks_its_keys_and_the_engine_lives_on() -> None:
    rig = Rig(model=Faulty())
    (answer,) = rig.run(Prefill(KEY, (1, 500), tails(()), GREEDY))
    assert answer == Broken(KEY, "RuntimeError: the device said no")
    rig.assert_empty()
    assert len(generate(rig, (1, 2, 3), replace(GREEDY, max_tokens=4))[0]) == 4


def test_three_failing_steps_in_a_row_are_raised() -> None:
    rig = Rig(model=Faulty())
    for _ in range(2):
        rig.run(Prefill(KEY, (1, 500), tails(()), GREEDY))
    with pytest.raises(RuntimeError, match="the device said no"):
        rig.run(Prefill(KEY, (1, 500), tails(()), GREEDY))


def test_a_request_without_a_token_to_choose_is_broken_alone() -> None:
    rig = Rig()
    impossible = replace(GREEDY, min_tokens=1, stop_token_ids=tuple(range(512)))
    other = Prefill(("other", 0), prompt(20), tails(()), GREEDY)
    results = rig.run(Prefill(KEY, prompt(40), tails((), ()), impossible), other)
    assert [r.key for r in only(results, Broken)] == [KEY]
    assert len(only(results, NewTokens)) == 24
    rig.assert_empty()


def test_books_that_do_not_add_up_are_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.submit(prefill(16))
    rig.step()

    def take() -> int:
        raise BrokenPromise("a block was promised, but all are held")

    monkeypatch.setattr(rig.engine._pool, "take", take)
    with pytest.raises(BrokenPromise, match="was promised"):
        rig.engine.step()


def test_a_pool_of_another_layout_is_refused() -> None:
    memory = PoolMemory(ToyModel(dtype="bfloat16").layout, 4)
    with pytest.raises(ValueError, match="layout"):
        Engine(MODEL, memory, EngineSettings(4, 32, 64))


def test_limits_with_which_nothing_would_run_are_refused() -> None:
    with pytest.raises(ValueError, match="max_num_seqs"):
        EngineSettings(0, 32, 64)


def test_every_layer_counts_as_progress() -> None:
    rig = Rig()
    generate(rig, prompt(40), replace(GREEDY, max_tokens=3))
    assert rig.memory.progress == 2 * 3
