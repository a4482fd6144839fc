"""The engine's books: every request, hand-over and task, what each holds, and what is promised to whom."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING

from engine.admission import demand, growth_blocks
from engine.api import Load
from engine.errors import BrokenPromise
from engine.layout import BLOCK_SIZE
from engine.plan import Running, Waiting
from engine.sequence import blocks_for

if TYPE_CHECKING:
    from engine.api import Key
    from engine.block_pool import BlockPool
    from engine.request import Choice, Landing, Request, Task


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

    def take_ages(self, count: int) -> int:
        """The first of ``count`` ages in a row, younger than all before."""
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
        task.sequence.start(self.pool, task.sequence.find_cached(self.pool))
        if task.choice is None:
            for choice in task.request.live:
                count = task.request.num_branch_blocks(choice)
                choice.branch = [self.pool.take() for _ in range(count)]
        self.prompt_tokens_cached += min(task.sequence.num_computed, task.num_prefill)
        self.run(task)

    def preempt(self, task: Task) -> None:
        """Take a running task's blocks; it waits in front of all who came later."""
        self.num_preemptions += 1
        self._take_out(self.running, task)
        self._give_back(task)
        task.num_prefill = len(task.sequence.token_ids)
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

    # -- what is promised -----------------------------------------------------------------------------

    def spare_blocks(self) -> int:
        """One for each live choice, adopted, running or landing: never granted away."""
        running = sum(task.spare for task in self.running)
        landing = sum(len(x.choices) for x in self.landings.values() if x.granted is not None)
        return running + landing

    def reserved_blocks(self) -> int:
        """What hand-overs that are counted in, but not granted yet, can't do without."""
        return sum(
            demand(x.num_prompt_tokens, x.tail_lens, x.max_tokens).least
            for x in self.landings.values()
            if x.granted is None
        )

    def promised_blocks(self, but: Key | None = None) -> int:
        """Free or cached blocks that those who are here are expected to take yet, without the request ``but``."""
        total = 0
        for landing in self.landings.values():
            if landing.key != but:
                wanted = demand(landing.num_prompt_tokens, landing.tail_lens, landing.max_tokens)
                total += wanted.growth if landing.granted is not None else wanted.expected
        for task in self.waiting:
            total += self._start_blocks(task) + _growth(task)
        return total + sum(_growth(task) for task in self.running)

    # -- views for the plan ---------------------------------------------------------------------------

    def running_views(self) -> list[Running]:
        """The running tasks as the plan sees them. What each would give back is counted only if it may matter."""
        pool = self.pool
        tight = pool.num_available < len(self.running)
        views: list[Running] = []
        for task in self.running:
            sequence = task.sequence
            own = sequence.num_own(pool) if tight else 0
            needs = sequence.num_left == 1 and sequence.needs_block(pool)
            views.append(
                Running(
                    sequence.age,
                    sequence.num_left,
                    len(sequence.blocks),
                    needs,
                    own,
                    task.request.hand_over,
                )
            )
        return views

    def waiting_view(self, task: Task) -> Waiting:
        """A waiting task as the plan sees it, with what the cache has for it now."""
        cached = task.sequence.find_cached(self.pool)
        held = sum(self.pool.holds(block) > 0 for block in cached)
        num_left = task.sequence.num_left - len(cached) * BLOCK_SIZE
        return Waiting(task.age, num_left, self._start_blocks(task) - held, task.spare)

    # -- reports --------------------------------------------------------------------------------------

    def load(self) -> Load:
        """Where everything stands now."""
        unfinished = [t.sequence.num_left for t in self.running if t.sequence.num_left > 1]
        return Load(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            waiting_tokens=sum(t.sequence.num_left for t in self.waiting) + sum(unfinished),
            total_blocks=self.pool.num_blocks,
            free_blocks=self.pool.num_free,
            cached_blocks=self.pool.num_cached,
            held_blocks=self.pool.num_held,
            reserved_blocks=self.promised_blocks(),
            num_steps=self.num_steps,
            prompt_tokens_computed=self.prompt_tokens_computed,
            prompt_tokens_cached=self.prompt_tokens_cached,
            tokens_made=self.tokens_made,
            num_preemptions=self.num_preemptions,
        )

    def check(self) -> None:
        """Raise ``BrokenPromise`` unless every hold in the pool belongs to exactly one owner here."""
        self.pool.check()
        owned: Counter[int] = Counter()
        for landing in self.landings.values():
            owned.update(landing.blocks())
        for request in self.requests.values():
            for choice in request.choices:
                owned.update(choice.branch)
            tasks = [request.trunk, *(choice.task for choice in request.choices)]
            for task in tasks:
                owned.update(task.sequence.blocks if task is not None else ())
        for block in range(self.pool.num_blocks):
            if self.pool.holds(block) != owned[block]:
                raise BrokenPromise(
                    f"block {block} has {self.pool.holds(block)} holds, but {owned[block]} owners"
                )
        for task in self.waiting:
            if task.sequence.blocks:
                raise BrokenPromise(f"{task.request.key} waits and holds blocks")

    def _start_blocks(self, task: Task) -> int:
        total = blocks_for(len(task.sequence.token_ids))
        if task.choice is None:
            total += sum(task.request.num_branch_blocks(choice) for choice in task.request.live)
        return total

    def _give_back(self, task: Task) -> None:
        if task.choice is None:
            for choice in task.request.choices:
                self.drop_branch(choice)
        task.sequence.drop(self.pool)

    def _take_out(self, tasks: list[Task], task: Task) -> None:
        index = bisect_left(tasks, task.age, key=_age)
        if index == len(tasks) or tasks[index] is not task:
            raise BrokenPromise(
                f"{task.request.key} has a task of age {task.age} that isn't listed"
            )
        del tasks[index]


def _age(task: Task) -> int:
    return task.age


def _growth(task: Task) -> int:
    """Blocks that a task's choices are expected to take beyond its known tokens."""
    request = task.request
    if request.hand_over:
        return 0
    choices = request.live if task.choice is None else [task.choice]
    return sum(growth_blocks(request.sampling.max_tokens, len(c.output)) for c in choices)
