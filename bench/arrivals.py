"""When the requests of an open loop arrive."""

import random

from bench.errors import BenchError
from bench.workload import CONSTANT, Workload

MAX_ARRIVALS = 100_000
"""Requests of one run at the most: their prompts are kept in memory."""


def arrival_times(workload: Workload, rng: random.Random) -> list[float]:
    """Return seconds from the start of the run, rising.

    Poisson: the gaps between arrivals are drawn from an exponential distribution with mean 1 / rate. Constant: all
    gaps are 1 / rate. An infinite rate: all at 0. Ends with `num_prompts` (if set) or before `duration_s` (if set),
    whichever is first. Raises `BenchError` if that would be too many.
    """
    times: list[float] = []
    now = 0.0
    most = workload.num_prompts or MAX_ARRIVALS + 1
    end = workload.duration_s or float("inf")
    while len(times) < most and now < end:
        times.append(now)
        now += _gap(workload, rng)
    if len(times) > MAX_ARRIVALS:
        raise BenchError(f"more than {MAX_ARRIVALS} requests in one run; give a shorter --duration")
    return times


def _gap(workload: Workload, rng: random.Random) -> float:
    if workload.rate_per_s == float("inf"):
        return 0.0
    return 1 / workload.rate_per_s if workload.arrival == CONSTANT else rng.expovariate(workload.rate_per_s)
