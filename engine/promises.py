"""Free and cached blocks that are spoken for: to whom, and how many."""

from __future__ import annotations

from engine.admission import Demand, demand, growth_blocks
from engine.api import Key
from engine.book import Book
from engine.request import Landing, Task
from engine.sequence import blocks_for


def spare_blocks(book: Book) -> int:
    """One for each live choice, adopted, running or landing: never granted away."""
    running = sum(task.spare for task in book.running)
    landing = sum(len(x.choices) for x in book.landings.values() if x.granted is not None)
    return running + landing


def reserved_blocks(book: Book) -> int:
    """What hand-overs that are counted in, but not granted yet, can't do without."""
    return sum(_demand(x).least for x in book.landings.values() if x.granted is None)


def promised_blocks(book: Book, but: Key | None = None) -> int:
    """Blocks that those who are here are expected to take yet, without the hand-over ``but``."""
    total = 0
    for landing in book.landings.values():
        if landing.key != but:
            total += _demand(landing).expected if landing.granted is None else _demand(landing).growth
    for task in book.waiting:
        total += start_blocks(task) + _growth(task)
    return total + sum(_growth(task) for task in book.running)


def start_blocks(task: Task) -> int:
    """Blocks that a waiting task needs for its known tokens and those of its branches, cached ones included."""
    total = blocks_for(len(task.sequence.token_ids))
    if task.choice is None:
        total += sum(task.request.num_branch_blocks(choice) for choice in task.request.live)
    return total


def _demand(landing: Landing) -> Demand:
    return demand(landing.num_prompt_tokens, landing.tail_lens, landing.max_tokens)


def _growth(task: Task) -> int:
    """Blocks that a task's choices are expected to take beyond its known tokens."""
    request = task.request
    if request.hand_over:
        return 0
    choices = request.live if task.choice is None else [task.choice]
    return sum(growth_blocks(request.sampling.max_tokens, len(c.output)) for c in choices)
