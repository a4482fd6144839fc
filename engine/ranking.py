"""The first few of a row in the order (value descending, index ascending), without sorting the row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def highest(values: npt.NDArray[np.floating[Any]], count: int) -> npt.NDArray[np.int64]:
    """Indexes of the ``count`` highest ``values`` ``[n]``, highest first, lower index first among equals."""
    size = len(values)
    if count <= 0:
        return np.empty(0, np.int64)
    if count >= size:
        return np.argsort(-values, kind="stable")
    least = np.partition(values, size - count)[size - count]
    above = np.flatnonzero(values > least)
    equal = np.flatnonzero(values == least)[: count - len(above)]
    ids = np.concatenate((above, equal))
    return ids[np.lexsort((ids, -values[ids]))]
