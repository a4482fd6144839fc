"""Requests of an open loop arrive as their process says."""

from __future__ import annotations

import random
import statistics
from itertools import pairwise

import pytest

from bench.arrivals import arrival_times
from bench.errors import BenchError
from bench.workload import CONSTANT, Workload


def times_of(seed: int = 0, **about: object) -> list[float]:
    return arrival_times(Workload(name="x", **about), random.Random(seed))  # type: ignore[arg-type]


def test_constant_arrivals_are_evenly_spaced() -> None:
    assert times_of(rate_per_s=4, arrival=CONSTANT, num_prompts=5) == [0, 0.25, 0.5, 0.75, 1]


def test_poisson_arrivals_have_the_mean_and_the_spread_of_an_exponential() -> None:
    times = times_of(rate_per_s=10, num_prompts=5000)
    gaps = [after - before for before, after in pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(0.1, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.1, rel=0.05)


def test_a_seed_gives_its_arrivals_again() -> None:
    first, again, other = (times_of(seed, rate_per_s=10, num_prompts=9) for seed in (1, 1, 2))
    assert first == again != other


def test_an_infinite_rate_is_a_burst() -> None:
    assert times_of(rate_per_s=float("inf"), num_prompts=7) == [0.0] * 7


def test_arrivals_end_with_the_duration_or_the_number_whichever_is_first() -> None:
    assert times_of(rate_per_s=2, arrival=CONSTANT, duration_s=2) == [0, 0.5, 1, 1.5]
    assert len(times_of(rate_per_s=2, arrival=CONSTANT, duration_s=2, num_prompts=3)) == 3
    assert len(times_of(rate_per_s=2, arrival=CONSTANT, duration_s=2, num_prompts=30)) == 4


def test_more_requests_than_memory_should_hold_are_refused() -> None:
    with pytest.raises(BenchError, match="shorter --duration"):
        times_of(rate_per_s=1e6, arrival=CONSTANT, duration_s=3600)
