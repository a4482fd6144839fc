"""What follows from a computed step: tokens for choices, forks, hand-over reports, ends."""

from __future__ import annotations

from collections.abc import Callable

from engine.api import Computed, Embedded, NewTokens, Released, Result
from engine.book import Book
from engine.layout import BLOCK_SIZE
from engine.pooling import vector_of
from engine.request import Choice, Request, Task
from engine.sampler import Sampled
from engine.sequence import blocks_for

TRUNK = -1
"""``choice`` in what is reported of a trunk."""


class Progress:
    """Applies computed chunks and sampled tokens to one engine's books."""

    def __init__(self, book: Book, max_model_len: int, copy_block: Callable[[int, int], None]) -> None:
        """``copy_block(source, copy)`` copies a block's content in every layer."""
        self._book = book
        self._max_model_len = max_model_len
        self._copy_block = copy_block

    def apply(self, task: Task, num_tokens: int, sampled: list[Sampled]) -> list[Result]:
        """``num_tokens`` of a task are computed; ``sampled`` is for its ``waiting_choices``, if that completed it.

        Raises ``GrammarError`` where a grammar can't be followed further; then the request has to be forgotten.
        """
        self._book.advance(task, num_tokens)
        if task.request.sampling.forced_ids:
            return self._score(task, sampled)
        if task.request.sampling.pooling:
            return self._embed(task)
        if task.sequence.num_left:
            return self.report(task)
        results = self.report(task)
        request, choices = task.request, task.waiting_choices()
        for choice, token in zip(choices, sampled, strict=True):
            results.append(self._take_token(task, choice, token))
        ended = [choice for choice in choices if choice.ended]
        if task.choice is None:
            self._branch_out(task)
        elif request.hand_over and not task.choice.ended:
            self._book.retire(task)
        over = [self._book.end_choice(request, choice) for choice in ended]
        if any(over):
            results.append(Released(request.key))
        return results

    def _score(self, task: Task, scored: list[Sampled]) -> list[Result]:
        """Tell the next forced tokens; with the last one the request is over."""
        request, [choice] = task.request, task.request.choices
        results: list[Result] = []
        if scored:
            index = len(choice.output)
            choice.output += [each.token_id for each in scored]
            self._book.tokens_made += len(scored)
            reason = "length" if len(choice.output) == len(request.sampling.forced_ids) else ""
            logprobs = tuple(each.logprob for each in scored if each.logprob is not None)
            ids = tuple(each.token_id for each in scored)
            results.append(NewTokens(request.key, choice.number, index, ids, logprobs, reason, -1, 0))
        return results if task.sequence.num_left else results + self._end(request, choice)

    def _embed(self, task: Task) -> list[Result]:
        """Tell the vector once all is computed; the request is over with it."""
        if task.sequence.num_left:
            return []
        request, [choice] = task.request, task.request.choices
        return [Embedded(request.key, vector_of(task), request.num_cached_tokens), *self._end(request, choice)]

    def _end(self, request: Request, choice: Choice) -> list[Result]:
        """The only choice of a request is over."""
        return [Released(request.key)] if self._book.end_choice(request, choice) else []

    def report(self, task: Task) -> list[Result]:
        """What of a hand-over's task is final and not reported yet, in whole blocks until its end."""
        request, sequence = task.request, task.sequence
        if not request.hand_over:
            return []
        last = sequence.num_left == 0
        num_tokens = sequence.num_computed
        if not last:
            num_tokens -= num_tokens % BLOCK_SIZE
        first = request.branch_start if task.choice else 0
        if num_tokens <= max(task.num_reported, first * BLOCK_SIZE):
            return []
        task.num_reported = num_tokens
        number = task.choice.number if task.choice else TRUNK
        blocks = tuple(sequence.blocks[first : blocks_for(num_tokens)])
        return [Computed(request.key, number, first * BLOCK_SIZE, num_tokens, blocks, last)]

    def _take_token(self, task: Task, choice: Choice, token: Sampled) -> NewTokens:
        """Add a sampled token to its choice; marks it ended if it is the last one."""
        self._book.tokens_made += 1
        request = task.request
        index = len(choice.output)
        choice.output.append(token.token_id)
        if choice.guide is not None:
            choice.guide.accept(token.token_id)
        if task.choice is not None:
            task.sequence.token_ids.append(token.token_id)
        reason, stop_token = request.ending(choice, self._max_model_len)
        choice.ended = bool(reason)
        return NewTokens(
            request.key,
            choice.number,
            index,
            (token.token_id,),
            (token.logprob,) if token.logprob is not None else (),
            reason,
            stop_token,
            request.num_cached_tokens,
        )

    def _branch_out(self, trunk: Task) -> None:
        """The trunk is complete: choices with a branch fork to compute it, others to decode on."""
        book, request = self._book, trunk.request
        for choice in request.live:
            if request.branches(choice):
                self._fork_branch(trunk, choice)
            elif not request.hand_over:
                tokens = [*request.prompt_ids, *choice.output]
                self._fork(trunk, choice, len(trunk.sequence.blocks), tokens, num_prefill=0)
        if request.hand_over:
            book.retire(trunk)
        else:
            request.trunk = None
            book.quit(trunk)

    def _fork_branch(self, trunk: Task, choice: Choice) -> None:
        """Share the trunk's full blocks; the tail goes into the branch's, or into cached ones where there are."""
        book, pool, request = self._book, self._book.pool, trunk.request
        tokens = [*request.prompt_ids, *choice.output]
        first = request.branch_start
        task = self._fork(trunk, choice, first, tokens, num_prefill=len(tokens))
        sequence, branch = task.sequence, choice.branch
        cached = sequence.find_cached(pool, first)
        for block in cached:
            pool.hold(block)
        for block in reversed(branch[: len(cached)]):
            pool.drop(block)
        sequence.blocks += cached + branch[len(cached) :]
        choice.branch = []
        if cached:
            sequence.num_computed = (first + len(cached)) * BLOCK_SIZE
            sequence.num_named = first + len(cached)
            book.prompt_tokens_cached += sequence.num_computed - len(request.prompt_ids)
        elif len(request.prompt_ids) % BLOCK_SIZE:
            self._copy_block(trunk.sequence.blocks[first], branch[0])

    def _fork(self, trunk: Task, choice: Choice, num_blocks: int, tokens: list[int], num_prefill: int) -> Task:
        sequence = trunk.sequence.fork(self._book.pool, choice.age, num_blocks, tokens)
        choice.task = Task(trunk.request, choice, sequence, num_prefill)
        self._book.run(choice.task)
        return choice.task
