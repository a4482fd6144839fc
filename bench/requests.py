"""The requests of one run, made before it starts."""

import math
import random
from pathlib import Path

from bench.arrivals import MAX_ARRIVALS, arrival_times
from bench.client import Ask, body_of
from bench.errors import BenchError
from bench.passages import Passages
from bench.settings import Settings
from bench.trace import BLOCK_LEN, Row, read_trace
from bench.workload import Workload

MAX_STREAM_PROMPTS = 40
"""Prompts that are made for each steady stream."""

_PRIME_OUTPUT_LEN = 4


class Requests:
    """Makes the requests of one run.

    Each server gets prompts of its own, so that two names of one server don't answer each other's from a prefix cache.
    They come at the same times.
    """

    def __init__(
        self, settings: Settings, passages: Passages, model: str, workload: Workload, target: str, seed: int
    ) -> None:
        self._settings, self._passages, self._model, self._workload = settings, passages, model, workload
        self._seed = f"{seed} {workload.name} {target}"
        self._texts = random.Random(self._seed)
        self._blocks: dict[int, str] = {}
        self._arrivals = random.Random(f"{seed} {workload.name}")
        shared = workload.shared_prefix_len
        self._lead = passages.cut(shared, self._texts) if shared else ""

    def asks(self) -> list[Ask]:
        """Return the requests in order; those of steady streams are dealt out in turn."""
        workload = self._workload
        if workload.trace:
            return [self._replayed(row, due_s) for row, due_s in self._rows()]
        if workload.kind == "open":
            times = arrival_times(workload, self._arrivals)
        else:
            times = [0.0] * (workload.num_prompts or workload.num_streams * MAX_STREAM_PROMPTS)
        return [self.ask(workload.prompt_len, workload.output_len, due_s) for due_s in times]

    def longs(self) -> list[Ask]:
        """Return the long prompts among steady streams."""
        workload = self._workload
        times = [number * workload.long_every_s for number in range(workload.num_longs)]
        return [self.ask(workload.long_prompt_len, workload.long_output_len, due_s) for due_s in times]

    def prime(self) -> Ask | None:
        """Return a request that makes the server compute the shared prefix."""
        return self.ask(self._workload.prompt_len, _PRIME_OUTPUT_LEN) if self._lead else None

    def ask(self, prompt_len: int, output_len: int, due_s: float = 0.0) -> Ask:
        """Return one request whose prompt starts with the shared prefix, if there is one."""
        return self._asking(self._passages.cut(prompt_len, self._texts, self._lead), output_len, due_s)

    def _asking(self, prompt: str, output_len: int, due_s: float) -> Ask:
        settings = self._settings
        body = body_of(self._model, prompt, output_len, chat=settings.is_chat, extra=settings.extra_body)
        return Ask(body, output_len, due_s)

    def _rows(self) -> list[tuple[Row, float]]:
        """Return the rows of the trace that are replayed, each with its time."""
        workload = self._workload
        longest = workload.trace_max_len or math.inf
        rows = [row for row in read_trace(Path(workload.trace)) if row.prompt_len + row.output_len <= longest]
        timed = [(row, row.at_s / workload.trace_speed) for row in rows]
        timed = [(row, due_s) for row, due_s in timed if due_s < (workload.duration_s or math.inf)]
        timed = timed[: workload.num_prompts or MAX_ARRIVALS + 1]
        if not timed or len(timed) > MAX_ARRIVALS:
            raise BenchError(f"--trace: {len(timed)} requests are left, of 1 to {MAX_ARRIVALS} that can be replayed")
        return timed

    def _replayed(self, row: Row, due_s: float) -> Ask:
        """Return a request of the row's length; prompts with equal leading blocks begin alike."""
        blocks = row.blocks[: (row.prompt_len - 1) // BLOCK_LEN]
        lead = " ".join(map(self._block, blocks))
        while self._passages.count(lead) >= row.prompt_len:  # joined, blocks may have a token more than apart
            blocks = blocks[:-1]
            lead = " ".join(map(self._block, blocks))
        own_len = row.prompt_len - self._passages.count(lead)
        return self._asking(self._passages.cut(own_len, self._texts, lead), row.output_len, due_s)

    def _block(self, block: int) -> str:
        if block not in self._blocks:
            rng = random.Random(f"{self._seed} {block}")
            self._blocks[block] = self._passages.cut(BLOCK_LEN, rng)
        return self._blocks[block]
