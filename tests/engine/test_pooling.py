"""Vectors of prompts: one a request, whatever the chunks, the cache and the other requests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.api import Embedded, NewTokens, Prefill, Rejected, Released
from protocol.sampling import Sampling
from tests.support.engine_rig import GREEDY, KEY, Rig, generate, only, prompt, tails

POOLED = Sampling(max_tokens=1, pooling="mean")


def vector(rig: Rig, length: int = 100, pooling: str = "mean", *, hand_over: bool = True, seed: int = 0) -> Embedded:
    command = Prefill(KEY, prompt(length, seed), tails(()), replace(POOLED, pooling=pooling), hand_over=hand_over)
    results = rig.run(command)
    assert bool(only(results, Released)) is not hand_over
    assert not only(results, NewTokens)
    [made] = only(results, Embedded)
    return made


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("hand_over", [True, False])
def test_it_has_length_one_and_depends_on_the_prompt_alone(pooling: str, hand_over: bool) -> None:
    made = vector(Rig(), pooling=pooling, hand_over=hand_over)
    values = np.frombuffer(made.vector, "<f4")
    assert np.linalg.norm(values) == pytest.approx(1)
    assert made.num_cached_tokens == 0
    assert vector(Rig(tokens=7), pooling=pooling).vector == made.vector
    assert vector(Rig(), pooling=pooling, seed=1).vector != made.vector
    other = "last" if pooling == "mean" else "mean"
    assert vector(Rig(), pooling=other).vector != made.vector


def test_it_is_the_same_beside_others() -> None:
    alone = vector(Rig()).vector
    rig = Rig()
    other = Prefill(("other", 0), prompt(30, 1), tails(()), GREEDY)
    results = rig.run(Prefill(KEY, prompt(100), tails(()), POOLED, hand_over=True), other)
    assert only(results, Embedded)[0].vector == alone
    assert rig.tokens(("other", 0)) == generate(Rig(), prompt(30, 1))[0]


def test_the_last_one_may_come_from_the_cache_and_the_mean_may_not() -> None:
    rig = Rig()
    generate(rig, prompt(100))
    last, mean = vector(rig, pooling="last"), vector(Rig(), pooling="mean")
    assert last.num_cached_tokens == 96
    assert last.vector == vector(Rig(), pooling="last").vector
    warm = Rig()
    generate(warm, prompt(100))
    assert vector(warm, pooling="mean") == mean


def test_who_gives_way_begins_again() -> None:
    alone = vector(Rig(), length=60).vector
    rig = Rig(10, tokens=20)
    rig.submit(Prefill(("long", 0), prompt(60, 3), tails(()), replace(GREEDY, max_tokens=60)))
    for _ in range(6):
        rig.step()
    rig.submit(Prefill(KEY, prompt(60), tails(()), POOLED))
    rig.run()
    assert only(rig.results, Embedded)[0].vector == alone


@pytest.mark.parametrize("change", [{"tails": tails((), ())}, {"sampling": replace(POOLED, pooling="max")}])
def test_what_cannot_be_pooled_is_refused(change: dict[str, object]) -> None:
    command = Prefill(KEY, prompt(9), tails(()), POOLED, hand_over=True)
    [refused] = only(Rig().run(replace(command, **change)), Rejected)  # type: ignore[arg-type]
    assert refused.code == "bad_request"
