"""Percentiles of measured times."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of times in milliseconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the sorted values lie, interpolated linearly between neighbors."""
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def quantiles_ms(seconds: Sequence[float]) -> Quantiles | None:
    """Return the percentiles of times in seconds, None if there are no times."""
    if not seconds:
        return None
    ordered = sorted(each * 1000 for each in seconds)
    p50, p90, p99 = (quantile(ordered, share) for share in (0.5, 0.9, 0.99))
    return Quantiles(len(ordered), sum(ordered) / len(ordered), p50, p90, p99, ordered[-1])
