"""A model with a paged cache, driven by hand: which tokens of which sequences go into the next forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.batch import Batch, GroupBatch
from engine.kv_cache import cache_bytes, map_cache
from engine.llama import LlamaModel

BLOCK = 16


@dataclass
class Line:
    """One sequence: its tokens, its blocks, and how many tokens have K and V."""

    ids: list[int]
    table: list[int] = field(default_factory=list)
    computed: int = 0


class ModelRig:
    """A model and a pool whose blocks are handed out in a scattered order."""

    def __init__(self, model: LlamaModel, num_blocks: int = 512, seed: int = 0) -> None:
        self.model = model
        self.cache = map_cache(bytearray(cache_bytes(model.layout, num_blocks)), model.layout, num_blocks)
        random = torch.Generator().manual_seed(seed)
        self.free = torch.randperm(num_blocks, generator=random).tolist()
        self.layers = 0

    def step(self, *work: tuple[Line, int], every_row: bool = False) -> Tensor:
        """Compute each line's tokens up to an end; logits of each line's last row, or of every row."""
        batch = self.batch(work, every_row)
        logits = self.model.logits(self.model.forward(batch, self.cache, self._count_layers))
        for line, end in work:
            line.computed = end
        return logits

    def batch(self, work: Sequence[tuple[Line, int]], every_row: bool) -> Batch:
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        starts = [0]
        for line, end in work:
            while len(line.table) * BLOCK < end:
                line.table.append(self.free.pop())
            span = range(line.computed, end)
            tokens += line.ids[line.computed : end]
            positions += span
            slots += [line.table[p // BLOCK] * BLOCK + p % BLOCK for p in span]
            starts.append(len(tokens))
        rows = list(range(len(tokens))) if every_row else [start - 1 for start in starts[1:]]
        tables = torch.zeros(len(work), max(len(line.table) for line, _ in work), dtype=torch.int32)
        for row, (line, _) in enumerate(work):
            tables[row, : len(line.table)] = torch.tensor(line.table)
        return Batch(
            torch.tensor(tokens),
            torch.tensor(positions),
            torch.tensor(starts, dtype=torch.int32),
            torch.tensor([end for _, end in work], dtype=torch.int32),
            torch.tensor(rows, dtype=torch.int64),
            (GroupBatch(torch.tensor(slots), tables),),
            tuple(end - line.computed for line, end in work),
            tuple(end for _, end in work),
        )

    def prefill(self, ids: Sequence[int], chunk: int = 1 << 20) -> tuple[Line, Tensor]:
        """Compute a prompt in chunks: its line, and the logits ``[vocab]`` after its last token."""
        line = Line(list(ids))
        logits = torch.empty(0)
        for end in [*range(chunk, len(ids), chunk), len(ids)]:
            logits = self.step((line, end))
        return line, logits[0]

    def release(self, lines: Iterable[Line]) -> None:
        """Give the blocks of these lines back."""
        for line in lines:
            self.free += line.table
            line.table = []

    def generate(self, ids: Sequence[int], num_tokens: int, chunk: int = 1 << 20) -> tuple[list[int], Tensor]:
        """Greedy tokens of one prompt alone, and the logits ``[num_tokens, vocab]`` they were chosen from."""
        line, logits = self.prefill(ids, chunk)
        rows = [logits]
        while len(rows) < num_tokens:
            line.ids.append(int(rows[-1].argmax()))
            rows.append(self.step((line, len(line.ids)))[0])
        self.release([line])
        return [int(row.argmax()) for row in rows], torch.stack(rows)

    def _count_layers(self, count: int) -> None:
        self.layers += count
