"""Rounds put together: medians, spreads, and each server against the first."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.campaign import Run
from bench.figures import Figures
from bench.quantiles import Quantiles
from bench.target import Target
from bench.workload import Workload

TIMES = {"ttft": "TTFT", "gap01": "gap 0→1", "itl": "ITL", "tpot": "TPOT", "e2e": "end to end"}
"""Fields of `Figures` with percentiles, and what people call them."""

GOODPUT = "goodput, requests/s"
_POINTS = ("p50", "p90", "p99")


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one figure over the rounds."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure that servers are compared by."""

    label: str
    of: Callable[[Figures], float | None]


def _times_metric(field: str, point: str) -> Metric:
    def of(figures: Figures) -> float | None:
        times: Quantiles | None = getattr(figures, field)
        return None if times is None else float(getattr(times, point))

    return Metric(f"{TIMES[field]} {point}, ms", of)


METRICS = (
    Metric("output tokens/s", lambda figures: figures.output_tokens_per_s),
    Metric("total tokens/s", lambda figures: figures.total_tokens_per_s),
    Metric(GOODPUT, lambda figures: figures.goodput_per_s),
    *(_times_metric(field, point) for field in TIMES for point in _POINTS),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One server under one workload, all rounds."""

    workload: Workload
    target: Target
    figures: tuple[Figures, ...]
    """In the order of the rounds."""

    spreads: dict[str, Spread]
    """By a metric's label; what wasn't measured is missing."""

    ratios: dict[str, Spread]
    """Of this server's figure to the first server's in the same round; empty for the first."""


def summarize(runs: Sequence[Run]) -> list[Row]:
    """Return a row for each workload and server that has finished a run, in the order of the first round."""
    rows = []
    for workload in dict.fromkeys(run.workload for run in runs):
        rounds: dict[Target, dict[int, Figures]] = {}
        for run in runs:
            if run.workload == workload:
                rounds.setdefault(run.target, {})[run.seed] = run.figures
        first = next(iter(rounds))
        rows += [_row(workload, target, rounds[target], rounds[first], target == first) for target in rounds]
    return rows


def _row(workload: Workload, target: Target, own: dict[int, Figures], base: dict[int, Figures], is_first: bool) -> Row:
    spreads, ratios = {}, {}
    for metric in METRICS:
        if spread := spread_of(metric.of(figures) for figures in own.values()):
            spreads[metric.label] = spread
        pairs = [(metric.of(own[seed]), metric.of(base[seed])) for seed in own if seed in base]
        if not is_first and (
            ratio := spread_of(mine / its if mine is not None and its else None for mine, its in pairs)
        ):
            ratios[metric.label] = ratio
    return Row(workload, target, tuple(own.values()), spreads, ratios)


def spread_of(values: Iterable[float | None]) -> Spread | None:
    """Return median, least and most of what was measured, None if nothing was."""
    found = [value for value in values if value is not None]
    return Spread(statistics.median(found), min(found), max(found)) if found else None
