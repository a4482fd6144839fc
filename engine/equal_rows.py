"""From how many rows on a product's rows don't depend on their number, on this CPU."""

from __future__ import annotations

import functools
import logging

import torch
from torch import Tensor

from engine.multiply import can_pack, packed, plain

log = logging.getLogger(__name__)

PROBE_ROWS = 48
"""Rows of the batch that smaller ones are compared with: past the widest register tile."""

PROBE_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33)

MIN_ROWS = (1, 2, 4, 8, 16)
"""Batch sizes tried as the smallest one with bit-equal rows."""

FIXED_ROWS = 32
"""Rows of each call where the batch size always matters."""


@functools.cache
def smallest_equal_batch(outputs: int, inputs: int, dtype: torch.dtype) -> int | None:
    """Smallest batch size from which on a row's result is bit-equal, on this CPU, for this shape; None for none."""
    weight, x = cancelling(outputs, PROBE_ROWS, inputs, dtype)
    multiply = packed(weight, None) if can_pack("cpu", dtype) else plain(weight, None)

    def rows(num_rows: int, start: int) -> Tensor:
        return multiply(x[start : start + num_rows].contiguous())

    whole = rows(PROBE_ROWS, 0)
    unequal = [n for n in PROBE_SIZES if not torch.equal(rows(n, 1), whole[1 : 1 + n])]
    for smallest in MIN_ROWS:
        if all(n < smallest for n in unequal):
            return smallest
    log.warning(
        "rows of a %d x %d product in %s depend on the batch size here: computed %d rows at a time, slowly",
        outputs,
        inputs,
        dtype,
        FIXED_ROWS,
    )
    return None


def cancelling(outputs: int, num_rows: int, inputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A weight ``[outputs, inputs]`` and rows ``[num_rows, inputs]`` whose products are all sums to 0.

    What a product of them holds is rounding noise alone, so that another order of summing shows in every
    number. With ordinary data a bfloat16 result shows it in one of thousands, where it lies near a tie.
    """
    random = torch.Generator().manual_seed(outputs * inputs)
    half = inputs // 2
    shuffle = torch.randperm(half, generator=random)
    weight = torch.zeros(outputs, inputs)
    weight[:, :half] = torch.randn(outputs, half, generator=random)
    weight[:, half : 2 * half] = -weight[:, shuffle]
    x = torch.zeros(num_rows, inputs)
    x[:, :half] = torch.randn(num_rows, half, generator=random)
    x[:, half : 2 * half] = x[:, shuffle]
    return weight.to(dtype), x.to(dtype)
