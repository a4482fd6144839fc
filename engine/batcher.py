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
    """``num_tokens`` tokens of ``sequence``, from its first uncomputed one on; each has output with ``all_rows``."""

    sequence: Sequence
    num_tokens: int
    all_rows: bool = False

    @property
    def num_rows(self) -> int:
        """Rows of output."""
        return self.num_tokens if self.all_rows else int(self.completes)

    @property
    def completes(self) -> bool:
        """Whether this computes the last known token, so that its logits give the next one."""
        return self.num_tokens == self.sequence.num_left


def build_batch(works: Many[Work], num_groups: int, device: torch.device) -> Batch:
    """Lay out ``works`` one after another, with outputs of the last ``num_rows`` tokens of each, in the same order.

    All cache groups use the same block numbers, so they share slots and tables.
    """
    ids: list[int] = []
    tables = np.zeros((len(works), max(len(w.sequence.blocks) for w in works)), np.int32)
    for row, work in enumerate(works):
        sequence, first = work.sequence, work.sequence.num_computed
        ids += sequence.token_ids[first : first + work.num_tokens]
        tables[row, : len(sequence.blocks)] = sequence.blocks
    counts = np.array([work.num_tokens for work in works])
    firsts = np.array([work.sequence.num_computed for work in works])
    starts = np.concatenate(((0,), np.cumsum(counts)))
    positions = np.arange(len(ids)) + np.repeat(firsts - starts[:-1], counts)
    blocks = tables[np.repeat(np.arange(len(works)), counts), positions // BLOCK_SIZE]
    slots = blocks.astype(np.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
    rows = [np.arange(end - work.num_rows, end) for work, end in zip(works, starts[1:], strict=True)]
    group = GroupBatch(_tensor(slots, device), _tensor(tables, device))
    return Batch(
        token_ids=_tensor(np.array(ids, np.int64), device),
        positions=_tensor(positions, device),
        query_starts=_tensor(starts.astype(np.int32), device),
        context_lens=_tensor((firsts + counts).astype(np.int32), device),
        output_rows=_tensor(np.concatenate(rows), device),
        groups=(group,) * num_groups,
        query_lens=tuple(counts.tolist()),
        host_context_lens=tuple((firsts + counts).tolist()),
    )


def _tensor(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device)
