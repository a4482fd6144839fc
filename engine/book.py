"""The engine's books: every request, hand-over and task, and what each holds."""

from __future__ import annotations

from bisect import bisect_left

from engine.api import Key
from engine.block_pool import BlockPool
from engine.errors import BrokenPromise
from engine.request import Choice, Landing, Request, Task

OLDEST_AGE = -(1 << 62)
"""Ages of what was moved here start from it; they never reach those of what is new."""


class Book:
    """Who is here. ``running`` tasks hold blocks, ``waiting`` ones hold none; both are ordered by age."""

    def __init__(self, pool: BlockPool) -> None:
        """Nobody is here yet."""
        self.pool = pool
        self.requests: dict[Key, Request] = {}
        self.landings: dict[Key, Landing] = {}
        self.running: list[Task] = []
        self.waiting: list[Task] = []
        self.tasks: dict[int, Task] = {}
        self.num_steps = self.prompt_tokens_computed = self.prompt_tokens_cached = 0
        self.tokens_made = self.num_preemptions = 0
        self._next_age = 0
        self._next_moved_age = OLDEST_AGE

    def take_ages(self, count: int, *, moved: bool) -> int:
        """The first of ``count`` ages in a row, younger than all before.

        What was ``moved`` here by a later attempt has waited elsewhere: it counts as older than all that is new.
        """
        if moved:
            self._next_moved_age += count
            return self._next_moved_age - count
        self._next_age += count
        return self._next_age - count

    # -- tasks ----------------------------------------------------------------------------------------

    def wait(self, task: Task) -> None:
        """Put a task without blocks where its age belongs."""
        self.tasks[task.age] = task
        self.waiting.insert(bisect_left(self.waiting, task.age, key=_age), task)

    def run(self, task: Task) -> None:
        """Put a task that has its blocks among the running ones."""
        self.tasks[task.age] = task
        self.running.insert(bisect_left(self.running, task.age, key=_age), task)

    def start(self, task: Task) -> None:
        """Give a waiting task all its blocks, the leading ones from the cache, and let it run."""
        self._take_out(self.waiting, task)
        request, sequence = task.request, task.sequence
        sequence.start(self.pool, sequence.find_cached(self.pool))
        if task.choice is None:
            if request.num_cached_tokens < 0:  # after a preemption it finds its own work
                request.num_cached_tokens = min(sequence.num_computed, len(request.prompt_ids))
            for choice in request.live:
                count = request.num_branch_blocks(choice)
                choice.branch = [self.pool.take() for _ in range(count)]
        self.prompt_tokens_cached += sequence.num_computed
        self.run(task)

    def preempt(self, task: Task) -> None:
        """Take a running task's blocks; it waits in front of all who came later."""
        self.num_preemptions += 1
        self._take_out(self.running, task)
        self._give_back(task)
        task.num_prefill = len(task.sequence.token_ids)
        task.pooled = None
        self.wait(task)

    def retire(self, task: Task) -> None:
        """A running task has nothing left to compute, but its blocks stay held."""
        self._take_out(self.running, task)
        del self.tasks[task.age]

    def quit(self, task: Task) -> None:
        """End a task in whatever state and give back all it holds."""
        if self.tasks.pop(task.age, None) is not None:
            self._take_out(self.running if task.sequence.blocks else self.waiting, task)
        self._give_back(task)

    def advance(self, task: Task, num_tokens: int) -> None:
        """``num_tokens`` more of a task have been computed."""
        before = task.sequence.num_computed
        task.sequence.advance(self.pool, num_tokens)
        end = min(task.sequence.num_computed, task.num_prefill)
        self.prompt_tokens_computed += max(0, end - before)

    # -- choices and requests -------------------------------------------------------------------------

    def end_choice(self, request: Request, choice: Choice) -> bool:
        """End one choice and give back what it alone holds. True if the request is over with it."""
        choice.ended = True
        if choice.task is not None:
            self.quit(choice.task)
            choice.task = None
        self.drop_branch(choice)
        if request.live:
            return False
        if request.hand_over:
            if request.trunk is not None and request.trunk.age in self.tasks:
                self.quit(request.trunk)
            return False
        self.forget(request.key)
        return True

    def drop_branch(self, choice: Choice) -> None:
        """Give back blocks tied for a choice's branch."""
        for block in reversed(choice.branch):
            self.pool.drop(block)
        choice.branch = []

    def forget(self, key: Key) -> None:
        """End all that is held for ``key``, in every state; nothing if it isn't here."""
        landing = self.landings.pop(key, None)
        if landing is not None:
            for block in landing.blocks():
                self.pool.drop(block)
        request = self.requests.pop(key, None)
        if request is None:
            return
        for choice in request.choices:
            if choice.task is not None:
                self.quit(choice.task)
            self.drop_branch(choice)
        if request.trunk is not None:
            self.quit(request.trunk)

    def _give_back(self, task: Task) -> None:
        if task.choice is None:
            for choice in task.request.choices:
                self.drop_branch(choice)
        task.sequence.drop(self.pool)

    def _take_out(self, tasks: list[Task], task: Task) -> None:
        index = bisect_left(tasks, task.age, key=_age)
        if index == len(tasks) or tasks[index] is not task:
            raise BrokenPromise(f"{task.request.key} has a task of age {task.age} that isn't listed")
        del tasks[index]


def _age(task: Task) -> int:
    return task.age
