"""What a step computes: a batch through the model, and its rows' tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.batcher import Work, build_batch
from engine.block_pool import BlockPool
from engine.device_sampler import Choose
from engine.kv_cache import copy_block
from engine.model import Model
from engine.pool_memory import PoolMemory
from engine.pooling import take_pooled
from engine.request import Task
from engine.rows import rows_of
from engine.sampler import Row, Sampled, SamplingError
from engine.staging import Staging
from engine.step_clock import StepClock


class Computation:
    """One model over one cache."""

    def __init__(
        self,
        model: Model,
        memory: PoolMemory,
        staging: Staging,
        pool: BlockPool,
        clock: StepClock,
        on_layers: Callable[[], None],
        choose: Choose,
    ) -> None:
        """``on_layers`` hears of layers that are done, ``memory`` counts them; ``choose`` chooses tokens by logits."""
        self._model = model
        self._memory = memory
        self._staging = staging
        self._pool = pool
        self._clock = clock
        self._on_layers = on_layers
        self._choose = choose

    def run(self, tasks: Sequence[Task], works: Sequence[Work]) -> list[list[Sampled | SamplingError]]:
        """Compute ``works``; returns, for each, the tokens of its ``waiting_choices`` if it completes."""
        if self._staging.places:
            self._staging.come_first(block for work in works for block in work.sequence.blocks)
        for work in works:
            copy = work.sequence.make_room(self._pool)
            if copy is not None:
                self.copy_block(*copy)
        cache = self._staging.cache
        batch = build_batch(works, len(self._model.layout.groups), cache[0].k.device)
        self._memory.begin_step(dict.fromkeys(task.request.mark for task in tasks))
        self._clock.begin()
        try:
            hidden = self._model.forward(batch, cache, self._layers_done)
            logits = self._model.logits(take_pooled(tasks, works, hidden))
        finally:
            self._memory.end_step()
            self._clock.end()
        rows, counts = _rows(tasks, works)
        tokens = self._choose(logits, rows) if rows else []
        faults = [token for token in tokens if type(token) is SamplingError]
        if faults and len(faults) == len(tokens):
            raise faults[0]  # that is the model's doing, not one request's
        each = iter(tokens)
        return [[next(each) for _ in range(count)] for count in counts]

    def copy_block(self, source: int, copy: int) -> None:
        """Copy a block over another in every layer."""
        copy_block(self._staging.cache, source, copy)

    def _layers_done(self, count: int) -> None:
        self._memory.count_layers(count)
        self._on_layers()


def _rows(tasks: Sequence[Task], works: Sequence[Work]) -> tuple[list[Row], list[int]]:
    """Rows of all tasks whose tokens are to be chosen, and how many are each one's."""
    rows: list[Row] = []
    counts: list[int] = []
    logits_row = 0
    for task, work in zip(tasks, works, strict=True):
        own = rows_of(task, work, logits_row)
        rows += own
        counts.append(len(own))
        logits_row += 0 if task.request.sampling.pooling else work.num_rows
    return rows, counts
