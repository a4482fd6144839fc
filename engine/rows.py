"""Which rows of a step's logits are for what: tokens to choose, or tokens that are only scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.batcher import Work
from engine.request import Task
from engine.sampler import Row

MAX_LOGITS = 1 << 22
"""Of tokens that are only scored, in one step: about 85 rows of 49,152, 16 MB and some tens of milliseconds."""


def within_logits(tasks: Sequence[Task], works: Sequence[Work], vocab_size: int) -> tuple[list[Task], list[Work]]:
    """Less of those that are scored, where their logits would be too many; the rest waits."""
    left = max(MAX_LOGITS // vocab_size, 1)
    kept: list[tuple[Task, Work]] = []
    for task, work in zip(tasks, works, strict=True):
        if task.request.sampling.forced_ids:
            work = replace(work, num_tokens=min(work.num_tokens, left))
            left -= work.num_tokens
        if work.num_tokens:
            kept.append((task, work))
    return [task for task, _ in kept], [work for _, work in kept]


def rows_of(task: Task, work: Work, logits_row: int) -> list[Row]:
    """What is sampled from a task's last logits, or told of forced tokens; nothing for what is pooled."""
    if task.request.sampling.forced_ids:
        return _scored_rows(task, work, logits_row)
    if task.request.sampling.pooling:
        return []
    choices = task.waiting_choices() if work.completes else []
    sampling, prompt_ids = task.request.sampling, task.request.prompt_ids
    return [Row(logits_row, each.number, sampling, prompt_ids, each.output, each.guide) for each in choices]


def _scored_rows(task: Task, work: Work, logits_row: int) -> list[Row]:
    """What is told of the forced tokens that follow those of this step, but for those that were told already."""
    request, first = task.request, task.sequence.num_computed + 1 - len(task.request.prompt_ids)
    [choice] = request.choices
    start, end = max(first, len(choice.output)), max(first + work.num_tokens, 0)
    return [
        Row(logits_row + index - first, choice.number, request.sampling, request.prompt_ids, forced_id=forced_id)
        for index, forced_id in enumerate(request.sampling.forced_ids[start:end], start)
    ]
