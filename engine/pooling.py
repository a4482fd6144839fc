"""One vector of a prompt's final hidden states: of all of them, or of the last one.

Their mean and their sum point the same way, and vectors are told at length 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.batcher import Work
from engine.request import Task


def take_pooled(tasks: Sequence[Task], works: Sequence[Work], hidden: Tensor) -> Tensor:
    """Add up what is pooled of a step's ``hidden`` ``[num_rows, hidden_size]``; returns the other rows."""
    if not any(task.request.sampling.pooling for task in tasks):
        return hidden
    others: list[Tensor] = []
    row = 0
    for task, work in zip(tasks, works, strict=True):
        rows = hidden[row : row + work.num_rows]
        row += work.num_rows
        if not task.request.sampling.pooling:
            others.append(rows)
        elif len(rows):
            total = rows.double().sum(0)
            task.pooled = total if task.pooled is None else task.pooled + total
    return torch.cat(others) if others else hidden[:0]


def vector_of(task: Task) -> bytes:
    """The vector of a task that is computed whole."""
    assert task.pooled is not None
    return bytes((task.pooled / task.pooled.norm()).float().cpu().numpy().astype("<f4").tobytes())
