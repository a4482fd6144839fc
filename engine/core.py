"""The engine: commands in, reports out. One step is: plan, run, apply, emit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from engine.api import (
    Adopt,
    Broken,
    Command,
    GaveBack,
    Grant,
    Key,
    Ping,
    Pong,
    Prefill,
    Rejected,
    Release,
    Released,
    Report,
    Reserve,
    Result,
    StopChoice,
)
from engine.batcher import Work
from engine.block_pool import BlockPool
from engine.book import Book
from engine.computation import Computation
from engine.device_sampler import Choose, choose_on_host
from engine.errors import BrokenPromise
from engine.gathering import Gathering
from engine.guidance import Guidance
from engine.guide import GrammarError
from engine.guides import Guides
from engine.intake import BAD_REQUEST, NEVER_FITS, Intake
from engine.landing import Arrivals
from engine.layout import BLOCK_SIZE
from engine.model import Model
from engine.outbox import Outbox
from engine.plan import Limits, Plan, Running, plan
from engine.pool_memory import PoolMemory
from engine.progress import Progress
from engine.promises import reserved_blocks, spare_blocks
from engine.request import Task
from engine.rows import within_logits
from engine.sampler import GuidedError, Sampled, SamplingError
from engine.settings import EngineSettings
from engine.staging import Staging
from engine.step_budget import StepBudget
from engine.step_clock import StepClock
from engine.turns import NoTurns, Turns
from engine.views import check_book, load_of, running_views, waiting_view

__all__ = ["Engine", "EngineSettings"]

log = logging.getLogger("engine")

MAX_FAILURES = 3
"""Failing steps in a row after which the engine gives up: one may be one request's doing, three are not."""


class Engine:
    """One model on one pool. Not thread-safe: commands and steps come from one loop."""

    def __init__(
        self,
        model: Model,
        memory: PoolMemory,
        settings: EngineSettings,
        staging: Staging | None = None,
        turns: Turns | None = None,
        guides: Guides | None = None,
        choose: Choose = choose_on_host,
    ) -> None:
        """Take over ``memory``, whose layout is the model's.

        ``staging`` and ``choose`` are for a model on another device; ``turns`` hears of layers that are done. Without
        ``guides`` requests with a grammar are refused.
        """
        if model.layout.block_size != BLOCK_SIZE or memory.layout != model.layout:
            raise ValueError("the pool's memory must have the model's layout")
        self._model = model
        self._staging = staging or Staging(memory)
        self._settings = settings
        self._turns = turns or NoTurns()
        self._budget = StepBudget(settings.itl_limit_s)
        settle = self._staging.settle if self._staging.is_apart else None
        self._pool = BlockPool(memory.num_blocks, settings.enable_prefix_caching, settle)
        self._book = Book(self._pool)
        self._intake = Intake(self._book, settings, model.config.vocab_size)
        self._guidance = Guidance(self._book, guides)
        self._arrivals = Arrivals(self._book, self._intake, self._guidance)
        self.clock = StepClock()
        self._gathering = Gathering(self.clock)
        self._computation = Computation(model, memory, self._staging, self._pool, self.clock, self._layers_done, choose)
        self._progress = Progress(self._book, settings.max_model_len, self._computation.copy_block)
        self._results: list[Result] = []
        self._outbox = Outbox(self._staging)
        self._tell: Callable[[Report], None] | None = None
        self._failures = 0
        self._blocked = False
        self._told_early = False

    # -- commands -------------------------------------------------------------------------------------

    def submit(self, command: Command) -> None:
        """Obey one command; its answer is in the next report. ``Shutdown`` is the loop's business."""
        self._blocked = False
        match command:
            case Prefill():
                self._prefill(command)
            case Reserve():
                self._results.append(self._arrivals.reserve(command))
            case Grant():
                self._results.append(self._arrivals.grant(command))
            case Adopt():
                self._adopt(command)
            case StopChoice():
                self._stop(command)
            case Ping():
                self._results.append(Pong(command.number))
            case Release():
                self._book.forget(command.key)
                self._staging.forget(command.key)
                self._results.append(Released(command.key))

    def has_work(self) -> bool:
        """Whether ``step`` would do something, beside waiting for a command that makes room."""
        return bool(self._results) or self.has_tasks() or self._guidance.has_news or self._outbox.has_news

    def has_tasks(self) -> bool:
        """Whether ``step`` would compute something."""
        somebody = bool(self._book.running or self._book.waiting)
        return somebody and (not self._blocked or self._guidance.has_news)

    def patience(self) -> float:
        """For how many seconds a step is better put off, for prompts that come together; 0 if it may begin now.

        No stream waits for that, nor do prompts of which half a step's tokens are to be computed.
        """
        seconds, book = self._gathering.wait_s(), self._book
        if not seconds or any(task.choice for task in (*book.running, *book.waiting)):
            return 0.0
        num_left = sum(task.sequence.num_left for task in book.running)
        num_left += sum(waiting_view(book, task).num_left for task in book.waiting)
        return seconds if 2 * num_left <= self._settings.max_num_batched_tokens else 0.0

    @property
    def expects_news(self) -> bool:
        """Whether there may be work soon, without a command."""
        return self._guidance.waits or self._outbox.holds

    def prepare(self) -> None:
        """Nobody waits for a step: do what the first request of some kind would wait for. Idempotent."""
        self._guidance.prepare()

    def tell_early(self, tell: Callable[[Report], None]) -> None:
        """Let ``tell`` have results that get ready while a step is computed; without it they wait for its end."""
        self._tell = tell

    def close(self) -> None:
        """Nothing will be asked any more: wait for copies that are under way."""
        self._staging.close()

    def num_prompts(self) -> int:
        """Prompts of which more than the last token is still to be computed."""
        book = self._book
        return len(book.waiting) + sum(task.sequence.num_left > 1 for task in book.running)

    def report(self) -> Report:
        """Results since the last report, and the load now."""
        results, self._results = self._results, []
        if self._staging.is_apart:
            results = self._outbox.take(results)
        return Report(tuple(results), load_of(self._book, self.clock))

    def check(self) -> None:
        """Raise ``BrokenPromise`` unless every block is accounted for: one owner per hold, and the sums hold."""
        check_book(self._book)

    def _prefill(self, command: Prefill) -> None:
        book, key = self._book, command.key
        if key in book.requests:
            return
        refusal = self._intake.never(command)
        if refusal is not None:
            self._results.append(refusal)
            return
        book.forget(key)  # a reservation of this key gives way to computing it here
        request = self._intake.prefill(command)
        refusal = self._intake.over_budget(command, request)
        if refusal is not None:
            self._results.append(refusal)
            return
        book.requests[key] = request
        self._gathering.arrived()
        self._guidance.ask(request)
        if request.trunk is not None:
            book.wait(request.trunk)

    def _adopt(self, command: Adopt) -> None:
        """Let a hand-over's choices run; what has landed and isn't there under the same name goes to the device."""
        landed = self._arrivals.landed_blocks(command.key) if self._staging.is_apart else ()
        self._results += self._arrivals.adopt(command)
        self._staging.place([block for block in landed if self._pool.holds(block)])

    def _stop(self, command: StopChoice) -> None:
        self._arrivals.stop(command.key, command.choice)
        request = self._book.requests.get(command.key)
        if request is None:
            return
        for choice in request.live:
            if choice.number == command.choice and self._book.end_choice(request, choice):
                self._results.append(Released(command.key))

    # -- steps ----------------------------------------------------------------------------------------

    def step(self) -> Report:
        """Compute one batch and report it.

        Returns before computing when a hand-over starts with cached blocks: they can be shipped meanwhile.
        After an exception in the model the keys of that batch are ``Broken``; the third in a row is raised. Where
        no token can be chosen that key alone is.
        """
        self._results += self._guidance.settle()
        decided = self._plan()
        found = self._prepare(decided)
        if found and not self._told_early:
            self._told_early = True
            return self.report()
        self._told_early = False
        chunks = [chunk for chunk in decided.chunks if chunk.age in self._book.tasks]
        tasks = [self._book.tasks[chunk.age] for chunk in chunks]
        self._blocked = not (tasks or decided.preempted or decided.outgrown)
        works = [
            Work(task.sequence, min(chunk.num_tokens, task.sequence.num_left), task.request.wants_all_rows)
            for task, chunk in zip(tasks, chunks, strict=True)
        ]
        tasks, works = within_logits(tasks, works, self._model.config.vocab_size)
        if works:
            self._book.num_steps += 1
            self._gathering.begun()
            begun = time.perf_counter()
            try:
                sampled = self._computation.run(tasks, works)
            except BrokenPromise:
                raise  # books that don't add up would make wrong tokens
            except Exception as error:
                self._fail(tasks, error)
            else:
                self._failures = 0
                self._learn(works, time.perf_counter() - begun)
                self._apply(tasks, works, sampled)
        return self.report()

    def _learn(self, works: Sequence[Work], seconds: float) -> None:
        num_tokens = [work.num_tokens for work in works if work.sequence.num_left > 1]
        self._budget.learn(len(works) - len(num_tokens), sum(num_tokens), seconds)

    def _plan(self) -> Plan:
        book = self._book
        running = self._placed(running_views(book))
        limits = Limits(
            self._settings.max_num_seqs,
            self._max_tokens(running),
            self._pool.num_blocks,
            spare_blocks(book) + reserved_blocks(book),
        )
        waiting = (waiting_view(book, task) for task in book.waiting if not task.request.unguided)
        return plan(waiting, running, self._pool.num_available, limits)

    def _placed(self, running: list[Running]) -> list[Running]:
        """Without those whose blocks are still on their way to the device, as long as others can go on."""
        if not self._staging.places or self._pool.num_available < len(running):
            return running
        tasks, is_placing = self._book.tasks, self._staging.is_placing
        return [each for each in running if not is_placing(tasks[each.age].sequence.blocks)] or running

    def _max_tokens(self, running: Sequence[Running]) -> int:
        """Tokens for the next step: beside decoding as many of prompts as its time limit allows."""
        most = self._settings.max_num_batched_tokens
        num_decodes = sum(view.num_left == 1 for view in running)
        if not num_decodes:
            return most
        return min(most, num_decodes + self._budget.tokens(most, self.num_prompts()))

    def _prepare(self, decided: Plan) -> bool:
        """End, preempt and start as planned. True if a hand-over found tokens in the cache to report.

        What has outgrown the pool ends with all its choices, some of which the plan may name too.
        """
        book = self._book
        for age in decided.outgrown:
            if age in book.tasks:
                self._outgrown(book.tasks[age].request.key)
        for age in decided.preempted:
            if age in book.tasks:
                self._preempt(book.tasks[age])
        found: list[Result] = []
        for age in decided.started:
            if age in book.tasks:
                book.start(book.tasks[age])
                found += self._progress.report(book.tasks[age])
        self._results += found
        return bool(found)

    def _apply(self, tasks: list[Task], works: list[Work], sampled: list[list[Sampled | SamplingError]]) -> None:
        for task, work, tokens in zip(tasks, works, sampled, strict=True):
            good = [token for token in tokens if isinstance(token, Sampled)]
            faults = [token for token in tokens if isinstance(token, SamplingError)]
            if faults:
                self._break(task.request.key, faults[0])
            elif task.age in self._book.tasks:  # else another choice has broken this request
                try:
                    self._results += self._progress.apply(task, work.num_tokens, good)
                except GrammarError as error:  # its grammar can't be followed from here; nobody else's concern
                    self._break(task.request.key, error)

    def _fail(self, tasks: list[Task], error: Exception) -> None:
        self._failures += 1
        log.error("step_failed tasks=%d in_a_row=%d", len(tasks), self._failures, exc_info=error)
        if self._failures >= MAX_FAILURES:
            raise error
        for key in dict.fromkeys(task.request.key for task in tasks):
            self._break(key, error)

    def _break(self, key: Key, error: Exception) -> None:
        if key in self._book.requests:
            self._book.forget(key)
            if isinstance(error, GuidedError | GrammarError):
                self._results.append(Broken(key, str(error), BAD_REQUEST))
            else:
                self._results.append(Broken(key, f"{type(error).__name__}: {error}"))

    def _preempt(self, task: Task) -> None:
        """Make a task wait, or give its whole request back if computing it again would take too long here."""
        limit = self._settings.max_recompute_tokens
        if limit < 0 or len(task.sequence.token_ids) <= limit:
            self._book.preempt(task)
            return
        self._book.num_preemptions += 1
        self._book.forget(task.request.key)
        self._results.append(GaveBack(task.request.key))

    def _outgrown(self, key: Key) -> None:
        self._book.forget(key)
        total = self._pool.num_blocks
        message = f"the answer has outgrown the whole pool of {total} blocks"
        self._results.append(Rejected(key, NEVER_FITS, message))

    def _layers_done(self) -> None:
        self._turns.layers_done()
        if self._tell is not None and self._outbox.holds and self._outbox.has_news:
            self._tell(Report(tuple(self._outbox.take(())), load_of(self._book, self.clock)))
