"""How far the engine is from what this machine allows: `python scripts/floor.py [--quick] [--check] [--json FILE]`.

Measures the ceilings (products a second, bytes read a second), then the default model's engine without network, and
prints floor, measured, ratio:

- a decode step of 1, 8, 16, 32 sequences. Its floor is the time of the products at the measured rate, or of reading the
  weights if that is longer (of one sequence it always is), plus that of reading the contexts' KV. With int8 every
  matrix counts as one byte a number;
- a prefill of 512 tokens. Its floor is the products and the attention at the measured rate;
- how a step grows when the sequences (1 to 64) or the context (1,000 to 8,000) double. It may take 2.2 times as long.

A step is all that the engine does for it: plan, model, sampling, report. Steps of different sizes are timed in turns,
and medians stand in the table, with the least and the most. Nothing else should run meanwhile. `--check` makes the exit
code 1 if a ratio is above its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # threads that wait spin for a bounded time; read when torch loads

from floors.ceilings import Best, Ceilings, measure
from floors.others import Others
from floors.steps import Decoding, Prefilling, Times
from floors.work import Work, rate_of

from engine.llama import LlamaModel
from kvferry.model_store import ensure_model

SEQUENCES = (1, 2, 4, 8, 16, 32, 64)
WITH_FLOOR = {1: 1.25, 8: 1.5, 16: 1.5, 32: 1.5}
"""Batch sizes whose floor is told, and how many times as long their step may take."""

CONTEXTS = (1000, 2000, 4000, 8000)
CHUNK = 500
"""Tokens a step while the contexts are computed: divides all of them."""

PREFILL_LEN, PREFILL_LIMIT = 512, 1.3
GROWTH_LIMIT = 2.2
BURST = 4
"""Steps that are timed before another size has its turn; one before them, which isn't, brings its data back."""


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the report: what, its floor (or the step before it doubled), measured, and the ratio."""

    what: str
    floor_ms: float
    measured: Times
    limit: float
    parts: str = ""

    @property
    def ratio(self) -> float:
        """How many times as long as its floor."""
        return self.measured.median / self.floor_ms

    @property
    def is_met(self) -> bool:
        """Whether it keeps its limit."""
        return self.ratio <= self.limit


def main() -> int:
    """Measure, print, return the exit code."""
    asked = parse()
    others = Others()
    ceilings = measure(asked.threads)
    print(_ceilings(ceilings), flush=True)
    model = load(asked.quantization)
    work = Work.of(model, weight_bytes=1 if asked.quantization == "int8" else 2)
    rate = rate_of(ceilings, asked.quantization)
    rounds = 2 if asked.quick else 6
    steps = rounds * (BURST + 1)
    batches = [Decoding(model, batch, asked.context, steps) for batch in SEQUENCES]
    prefilling = Prefilling(model, PREFILL_LEN)
    for _ in range(rounds):
        for each in batches:
            burst(each)
        prefilling.step()
    floors = decode_lines(batches, work, rate, ceilings.read)
    floor = work.prefill(PREFILL_LEN, rate, ceilings.read)
    floors.append(Line(f"prefill of {PREFILL_LEN}", floor.total_ms, Times.of(prefilling.times), PREFILL_LIMIT))
    print(f"\n{model.numerics}, {asked.quantization or 'bfloat16'}, contexts of {asked.context} tokens and a few\n")
    print(table("floor", floors), flush=True)
    growth = doublings([(f"decode, {each.batch} sequences", Times.of(each.times)) for each in batches])
    batches.clear()  # frees their pools
    growth += context_growth(model, rounds, steps)
    print(table("at half", growth))
    if (share := others.share()) is not None:
        print(f"Other programs took {share:.0%} of the cores meanwhile.")
    if asked.json:
        found = {
            "ceilings": asdict(ceilings),
            "floors": _plain(floors),
            "growth": _plain(growth),
            "others_share": share,
        }
        asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(asked.check and not all(line.is_met for line in floors + growth))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="[default: one a core]")
    parser.add_argument("--context", type=int, default=256, help="of the decode steps with a floor [default 256]")
    parser.add_argument(
        "--quantization", default="", choices=("", "int8"), help="of the model [default: none, bfloat16]"
    )
    parser.add_argument("--quick", action="store_true", help="a third of the rounds")
    parser.add_argument("--check", action="store_true", help="exit code 1 if a limit isn't kept")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the figures too")
    return parser.parse_args()


def load(quantization: str) -> LlamaModel:
    """Load the default model."""
    folder = ensure_model(None, lambda line: None)
    extra: dict[str, Any] = {"quantization": quantization} if quantization else {}
    return LlamaModel(folder, "bfloat16", **extra)


def burst(decoding: Decoding) -> None:
    """Time a few steps."""
    decoding.settle()
    for _ in range(BURST):
        decoding.step()


def decode_lines(batches: Sequence[Decoding], work: Work, rate: float, read: float) -> list[Line]:
    """Compare decode steps with their floors."""
    lines = []
    for each in batches:
        if limit := WITH_FLOOR.get(each.batch):
            floor = work.decode(each.batch, each.mean_context, rate, read)
            parts = f"products {floor.products_ms:.1f}, weights {floor.weights_ms:.1f}, KV {floor.kv_ms:.1f}"
            lines.append(Line(f"decode, batch {each.batch}", floor.total_ms, Times.of(each.times), limit, parts))
    return lines


def context_growth(model: LlamaModel, rounds: int, steps: int) -> list[Line]:
    """Compare steps of one sequence at each context with those at half of it."""
    long = [Decoding(model, 1, context, steps, CHUNK) for context in CONTEXTS]
    for _ in range(rounds):
        for each in long:
            burst(each)
    lines = doublings([(f"decode, context {each.context}", Times.of(each.times)) for each in long])
    chunks = [Times.of([each.chunk_times[at] for each in long if at in each.chunk_times]) for at in CONTEXTS]
    names = [f"prefill of {CHUNK} up to {at}" for at in CONTEXTS]
    return lines + doublings(list(zip(names, chunks, strict=True)))


def doublings(times: Sequence[tuple[str, Times]]) -> list[Line]:
    """Compare each with the one before, which had half of something."""
    return [Line(name, half.median, whole, GROWTH_LIMIT) for (_, half), (name, whole) in pairwise(times)]


def table(base: str, lines: Sequence[Line]) -> str:
    """Return a Markdown table."""
    rows = [f"| step | {base}, ms | measured, ms (least to most) | ratio | limit | |", "|---|---|---|---|---|---|"]
    for line in lines:
        times = line.measured
        spread = f"{times.median:.1f} ({times.least:.1f} to {times.most:.1f})"
        verdict = line.parts if line.is_met else f"**above** {line.parts}"
        rows.append(f"| {line.what} | {line.floor_ms:.1f} | {spread} | {line.ratio:.2f} | {line.limit} | {verdict} |")
    return "\n".join(rows) + "\n"


def _ceilings(found: Ceilings) -> str:
    giga = 1e-9
    many = f"{found.threads} threads"
    named: list[tuple[str, Best | None]] = [
        (f"bf16 products, {many}, GFLOP/s", found.bf16),
        (f"int8 products, {many}, GOP/s", found.int8),
        ("memory read, 1 thread, GB/s", found.read_one),
        (f"memory read, {many}, GB/s", found.read_all),
        ("last-level cache, 1 thread, GB/s", found.cache_one),
        (f"last-level cache, {many}, GB/s", found.cache_all),
    ]
    rows = [f"| {name} | {best.per_s * giga:.0f} | {best.by} |" for name, best in named if best]
    return "\n".join(["| ceiling | best | by |", "|---|---|---|", *rows])


def _plain(lines: Sequence[Line]) -> list[dict[str, object]]:
    return [{**asdict(line), "ratio": line.ratio, "is_met": line.is_met} for line in lines]


if __name__ == "__main__":
    sys.exit(main())
