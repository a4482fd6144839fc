"""The books as others see them: the plan, the reports, and the check that they add up."""

from __future__ import annotations

from collections import Counter

from engine.api import Load
from engine.book import Book
from engine.errors import BrokenPromise
from engine.layout import BLOCK_SIZE
from engine.plan import Running, Waiting
from engine.promises import promised_blocks, start_blocks
from engine.request import Task
from engine.step_clock import StepClock


def running_views(book: Book) -> list[Running]:
    """Running tasks that a step may take, for the plan. What each would give back is counted only if it may matter."""
    pool = book.pool
    tight = pool.num_available < len(book.running)
    views: list[Running] = []
    for task in book.running:
        if task.request.unguided:
            continue
        sequence = task.sequence
        left, num_blocks = sequence.num_left, len(sequence.blocks)
        needs_block = left == 1 and sequence.needs_block(pool)
        own_blocks = sequence.num_own(pool) if tight else 0
        views.append(Running(sequence.age, left, num_blocks, needs_block, own_blocks, task.request.hand_over))
    return views


def waiting_view(book: Book, task: Task) -> Waiting:
    """A waiting task for the plan, with what the cache has for it now."""
    cached = task.sequence.find_cached(book.pool)
    held = sum(book.pool.holds(block) > 0 for block in cached)
    num_left = task.sequence.num_left - len(cached) * BLOCK_SIZE
    return Waiting(task.age, num_left, start_blocks(task) - held, task.spare)


def load_of(book: Book, clock: StepClock) -> Load:
    """Where everything stands now."""
    pool = book.pool
    to_compute = [t.sequence.num_left for t in book.running if t.sequence.num_left > 1]
    to_compute += [t.sequence.num_left for t in book.waiting]
    return Load(
        num_running=len(book.running),
        num_waiting=len(book.waiting),
        waiting_tokens=sum(to_compute),
        total_blocks=pool.num_blocks,
        free_blocks=pool.num_free,
        cached_blocks=pool.num_cached,
        held_blocks=pool.num_held,
        reserved_blocks=promised_blocks(book),
        num_steps=book.num_steps,
        prompt_tokens_computed=book.prompt_tokens_computed,
        prompt_tokens_cached=book.prompt_tokens_cached,
        tokens_made=book.tokens_made,
        num_preemptions=book.num_preemptions,
        step_ms=clock.step_ms,
        step_gap_ms=clock.step_gap_ms,
    )


def check_book(book: Book) -> None:
    """Raise ``BrokenPromise`` unless every hold in the pool has exactly one owner in the book."""
    book.pool.check()
    owners: Counter[int] = Counter()
    for landing in book.landings.values():
        owners.update(landing.blocks())
    for request in book.requests.values():
        for choice in request.choices:
            owners.update(choice.branch)
        for task in (request.trunk, *(choice.task for choice in request.choices)):
            owners.update(task.sequence.blocks if task is not None else ())
    for block in range(book.pool.num_blocks):
        holds = book.pool.holds(block)
        if holds != owners[block]:
            raise BrokenPromise(f"block {block} has {holds} holds, but {owners[block]} owners")
    listed = book.running + book.waiting
    if len(listed) != len(book.tasks) or any(book.tasks.get(task.age) is not task for task in listed):
        raise BrokenPromise("running and waiting tasks aren't those that are known by age")
    for task in book.waiting:
        if task.sequence.blocks:
            raise BrokenPromise(f"{task.request.key} waits and holds blocks")
