"""Decode steps as CUDA graphs: recorded once for some numbers of sequences, then replayed in one launch.

A decode step of a small batch is some hundreds of short kernels; launched one by one from Python they keep the host
busy for longer than the device. A graph has fixed shapes and addresses, so a batch is copied into tensors of the next
larger size, whose remaining rows are nobody's: they read nothing, and write nothing into the cache.
See https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.batch import Batch, GroupBatch
from engine.layout import BLOCK_SIZE

log = logging.getLogger("engine")

NO_SLOT = -1
"""Where nothing is written."""

SIZES = (1, 2, 4, 8, *range(16, 257, 8))
"""Numbers of sequences that graphs are recorded for; a larger batch goes kernel by kernel."""

CONTEXTS = tuple(2048 << (2 * step) for step in range(6))
"""What the longest context is rounded up to, in tokens: attention launches a program for each part of it."""

OUT_OF_MEMORY = "out of memory"
"""So CUDA's own error says it, which torch gives no class of its own."""

HINT = "the rest is launched kernel by kernel; leave more with --gpu-memory-utilization, or --enforce-eager for none"

Compute = Callable[[Batch], Tensor]
"""One forward pass that launches the same kernels for all batches of one shape, and waits for none of them."""


class Recording(Protocol):
    """What was recorded."""

    def replay(self) -> None:
        """Compute again, from what the batch's tensors hold now, into the same result."""


Recorder = Callable[[Compute, Batch], tuple[Recording, Tensor]]
"""Records one pass, and returns with it the tensor that holds its result after each replay.

``torch.OutOfMemoryError`` if the device has no memory for it; then nothing is left of it.
"""


@dataclass(frozen=True, slots=True)
class _Graph:
    batch: Batch
    recording: Recording
    hidden: Tensor


class DecodeGraphs:
    """The graphs of one model over one cache, recorded when they are first needed.

    Once there is no memory for one more, none is recorded any more; those that are there go on.
    """

    def __init__(self, compute: Compute, device: torch.device, max_model_len: int, record: Recorder) -> None:
        """``max_model_len`` in tokens bounds the contexts."""
        self._compute = compute
        self._device = device
        self._lens = [length for length in CONTEXTS if length < max_model_len] + [max_model_len]
        self._record = record
        self._graphs: dict[tuple[int, int], _Graph] = {}
        self._is_full = False

    def run(self, batch: Batch) -> Tensor | None:
        """Final hidden states of a batch of decodes; they are overwritten by the next. None if it takes no graph."""
        num_seqs = len(batch.query_lens)
        is_decode = len(batch.output_rows) == num_seqs and all(length == 1 for length in batch.query_lens)
        if not is_decode or not 0 < num_seqs <= SIZES[-1]:
            return None
        size = SIZES[bisect_left(SIZES, num_seqs)]
        longest = self._lens[bisect_left(self._lens, max(batch.host_context_lens))]
        graph = self._graph(size, longest)
        if graph is None:
            return None
        _copy(batch, graph.batch)
        graph.recording.replay()
        return graph.hidden[:num_seqs]

    def _graph(self, size: int, longest: int) -> _Graph | None:
        graph = self._graphs.get((size, longest))
        if graph is None and not self._is_full:
            try:
                batch = _nobody(size, longest, -(-self._lens[-1] // BLOCK_SIZE), self._device)
                graph = self._graphs[size, longest] = _Graph(batch, *self._record(self._compute, batch))
            except torch.OutOfMemoryError as error:
                self._is_full = True
                text = "no_memory_for_graphs recorded=%d sequences=%d hint=%s reason=%s"
                log.warning(text, len(self._graphs), size, HINT, error)
        return graph


def _nobody(size: int, longest: int, num_blocks: int, device: torch.device) -> Batch:
    """A batch of sequences that are nobody's. No context will be longer than ``longest``."""
    group = GroupBatch(
        torch.full((size,), NO_SLOT, device=device), torch.zeros(size, num_blocks, dtype=torch.int32, device=device)
    )
    return Batch(
        token_ids=torch.zeros(size, dtype=torch.int64, device=device),
        positions=torch.zeros(size, dtype=torch.int64, device=device),
        query_starts=torch.arange(size + 1, dtype=torch.int32, device=device),
        context_lens=torch.zeros(size, dtype=torch.int32, device=device),
        output_rows=torch.arange(size, device=device),
        groups=(group,),
        query_lens=(1,) * size,
        host_context_lens=(longest,) * size,
    )


def _copy(batch: Batch, into: Batch) -> None:
    """Put a batch's sequences into the first rows; what comes behind is nobody's."""
    num_seqs = len(batch.query_lens)
    here, there = batch.groups[0], into.groups[0]
    into.token_ids[:num_seqs] = batch.token_ids
    into.positions[:num_seqs] = batch.positions
    into.context_lens[:num_seqs] = batch.context_lens
    into.context_lens[num_seqs:] = 0
    width = min(here.block_tables.shape[1], there.block_tables.shape[1])  # blocks behind a context's end aren't read
    there.block_tables[:num_seqs, :width] = here.block_tables[:, :width]
    there.slots[:num_seqs] = here.slots
    there.slots[num_seqs:] = NO_SLOT


class CudaRecorder:
    """Records on a card. All graphs share one pool of memory: no two of them run at once."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Compute, batch: Batch) -> tuple[Recording, Tensor]:
        """Compute once as always: what is compiled or allocated at a first call can't be recorded. Then record."""
        stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            compute(batch)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                hidden = compute(batch)
        except RuntimeError as error:
            shortage = _shortage(error)
            if shortage is None:
                raise
            raise torch.OutOfMemoryError(str(shortage)) from error
        return graph, hidden


def _shortage(error: BaseException) -> BaseException | None:
    """The lack of memory that led to an error: a recording that ends in one often fails once more when it is left."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, torch.OutOfMemoryError) and OUT_OF_MEMORY not in str(seen):
        seen = seen.__context__
    return seen


class Repeating:
    """The recorder's twin for devices without graphs: computes again, kernel by kernel."""

    def __init__(self, compute: Compute, batch: Batch) -> None:
        self._compute = compute
        self._batch = batch
        self.hidden = compute(batch)

    @classmethod
    def record(cls, compute: Compute, batch: Batch) -> tuple[Recording, Tensor]:
        """As ``Recorder`` promises."""
        made = cls(compute, batch)
        return made, made.hidden

    def replay(self) -> None:
        """As ``Recording`` promises."""
        self.hidden.copy_(self._compute(self._batch))
