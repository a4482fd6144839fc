"""The twin of ``sampling``, which defines what is right: every id is weighed, ranked and summed up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]
Whole = npt.NDArray[np.int64]

ONE = 1 << 44
"""Units that the likeliest id weighs."""

WEIGHTLESS = np.float32(-46)
"""The power of 2 of what rounds to no unit."""

STEEPEST, FLATTEST = 1e30, float(np.float32(1.2e-38))
TO_INTEGER = np.float32(1.5 * 2**23)
"""Adding it rounds a small float32 to a whole number."""

SERIES = [np.float32(each) for each in (
    1.55946778e-4, 1.34066434e-3, 9.61769279e-3, 5.55031039e-2, 2.40226522e-1, 6.93147242e-1, 1.0,
)]  # fmt: skip
"""Of 2 ** x around 0, the highest power first."""


class Choice(NamedTuple):
    """What one row asks for: ``row`` of the logits, ``mask`` of the masks (-1: all ids are allowed), settings.

    ``temperature`` 0 or less is greedy, ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 switch a filter off; ``number`` is
    in (0, 1].
    """

    row: int
    mask: int
    top_k: int
    temperature: float
    top_p: float
    min_p: float
    number: float


def choose_tokens(logits: Floats, choices: Sequence[Choice], masks: Sequence[Words], more: Floats | None) -> list[int]:
    """See sampling.choose_tokens."""
    rows = [*logits] if more is None else [*logits, *more]
    return [_token(rows[each.row], None if each.mask < 0 else masks[each.mask], each) for each in choices]


def weights(logits: Floats, peak: np.float32, temperature: float) -> Whole:
    """What ids weigh, in units; every operation is rounded to float32 by itself."""
    scale = scale_of(temperature)
    with np.errstate(over="ignore", invalid="ignore"):
        powers = (logits - peak) * scale
    powers = np.maximum(powers, WEIGHTLESS)
    exponents = (powers + TO_INTEGER) - TO_INTEGER
    rest = powers - exponents
    series = np.full_like(rest, SERIES[0])
    for factor in SERIES[1:]:
        series = series * rest + factor
    floats = np.ldexp(series, exponents.astype(np.int32)).astype(np.float64)
    units: Whole = np.rint(floats * ONE).astype(np.int64)
    return units


def scale_of(temperature: float) -> np.float32:
    """What differences of logits are multiplied by to be powers of 2; ``temperature`` is above 0."""
    return np.float32(min(max(1.4426950408889634 / temperature, FLATTEST), STEEPEST))


def _token(logits: Floats, mask: Words | None, choice: Choice) -> int:
    if not math.isfinite(logits.max()):
        return -2
    if mask is not None:
        bits = np.unpackbits(mask.astype("<u4").view(np.uint8), count=len(logits), bitorder="little")
        logits = np.where(bits, logits, np.float32(-np.inf))
    peak = logits.max()
    if peak == -np.inf:
        return -1
    if not choice.temperature > 0 or choice.top_k == 1:
        return int(logits.argmax())
    weight = weights(logits, peak, choice.temperature)
    kept = np.sort(_kept(logits, weight, choice))
    return int(kept[_place(weight[kept], choice.number)])


def _kept(logits: Floats, weight: Whole, choice: Choice) -> Whole:
    """Ids that the filters keep, in the order of their rank."""
    ranked = np.argsort(-logits, kind="stable")
    ranked = ranked[weight[ranked] > 0]
    if choice.top_k > 0:
        ranked = ranked[: choice.top_k]
    if choice.top_p < 1:
        ranked = ranked[: _place(weight[ranked], choice.top_p) + 1]
    if choice.min_p > 0:
        ranked = ranked[weight[ranked] >= share_of(choice.min_p, ONE)]
    return ranked


def _place(weight: Whole, share: float) -> int:
    """Of the first whose running sum reaches a share of all."""
    sums = np.cumsum(weight)
    return int(np.searchsorted(sums, share_of(share, int(sums[-1]))))


def share_of(share: float, total: int) -> int:
    """Units of a share: one at least, no more than all."""
    need = math.ceil(share * float(total))
    return total if need >= float(total) else max(need, 1)
