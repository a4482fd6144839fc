"""From chunks of sequences to the tensors of one forward pass."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.batch import Batch, GroupBatch
from engine.layout import BLOCK_SIZE
from engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Work:
    """``num_tokens`` tokens of ``sequence``, from its first uncomputed one on."""

    sequence: Sequence
    num_tokens: int

    @property
    def completes(self) -> bool:
        """Whether this computes the last known token, so that its logits give the next one."""
        return self.num_tokens == self.sequence.num_left


def build_batch(works: Many[Work], num_groups: int, device: torch.device) -> Batch:
    """Lay out ``works`` one after another, with a logits row for each that completes, in the same order.

    All cache groups use the same block numbers, so they share slots and tables.
    """
    ids: list[int] = []
    starts, ends = [0], []
    positions: list[npt.NDArray[np.int64]] = []
    slots: list[npt.NDArray[np.int64]] = []
    tables = np.zeros((len(works), max(len(w.sequence.blocks) for w in works)), np.int32)
    for row, work in enumerate(works):
        sequence = work.sequence
        first, end = sequence.num_computed, sequence.num_computed + work.num_tokens
        ids += sequence.token_ids[first:end]
        tables[row, : len(sequence.blocks)] = sequence.blocks
        places = np.arange(first, end)
        positions.append(places)
        slots.append(tables[row, places // BLOCK_SIZE] * np.int64(BLOCK_SIZE) + places % BLOCK_SIZE)
        ends.append(end)
        starts.append(len(ids))
    rows = [starts[i + 1] - 1 for i, work in enumerate(works) if work.completes]
    group = GroupBatch(_tensor(np.concatenate(slots), device), _tensor(tables, device))
    return Batch(
        token_ids=_tensor(np.array(ids, np.int64), device),
        positions=_tensor(np.concatenate(positions), device),
        query_starts=_tensor(np.array(starts, np.int32), device),
        context_lens=_tensor(np.array(ends, np.int32), device),
        logit_rows=_tensor(np.array(rows, np.int64), device),
        groups=(group,) * num_groups,
    )


def _tensor(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device)
