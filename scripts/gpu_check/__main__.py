"""Checks the kernels for GPUs on this machine's card, and prints a table: see `scripts/gpu_check.sh`."""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
from pathlib import Path

import torch

from gpu_check import ceilings, fast_attention, fast_rows, handover, machine, model, right_attention, right_rows
from gpu_check.bench import Bench
from gpu_check.check import Check, NotRun, Section
from gpu_check.table import FAILED, LEFT_OUT, NOT_RUN, Line, judged, table
from kvferry_kernels.gpu.numbers import INTERPRETED

BUDGET_S = 420.0
"""After it no more is begun: the whole ends within 8 minutes."""

OLDEST = (8, 0)
NO_CARD = "no NVIDIA card of sm_80 or newer"
"""Older ones have no bfloat16."""


def sections() -> list[Section]:
    """All checks, in their order."""
    return [
        Section("card", 30.0, ceilings.checks()),
        Section("correctness", 200.0, [*right_attention.checks(), *right_rows.checks()]),
        Section("attention", 60.0, fast_attention.checks()),
        Section("others", 80.0, fast_rows.checks()),
        Section("hand-over", 60.0, handover.checks()),
        Section("model", 100.0, model.checks()),
    ]


def main() -> int:
    """Check, print, return the exit code: 1 if something is wrong, missed or left out; 0 too where there is no card."""
    asked = parse()
    bench = place(is_tiny=asked.tiny)
    facts = machine.facts(bench.device if bench else None)
    say("; ".join(value for _, value in facts))
    lines = run([part for part in sections() if not asked.only or part.name in asked.only], bench, BUDGET_S)
    report = table(facts, lines)
    print(report)
    if asked.out:
        asked.out.write_text(report, encoding="utf-8")
    if bench is None:
        print(f"Not run: {NO_CARD} that torch {torch.__version__} can use.")
    return int(any(line.is_bad for line in lines))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="gpu_check.sh", description=__doc__)
    parser.add_argument("--out", type=Path, default=None, metavar="FILE", help="write the table there too")
    names = [part.name for part in sections()]
    parser.add_argument("--only", nargs="+", choices=names, default=(), metavar="PART", help=f"of {', '.join(names)}")
    parser.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)  # for tests: see Bench
    asked = parser.parse_args()
    if asked.out and not asked.out.resolve().parent.is_dir():
        parser.error(f"--out: {asked.out.parent} is no folder")
    return asked


def place(*, is_tiny: bool) -> Bench | None:
    """The first card, if it isn't too old; for tests the interpreter will do; else None."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability(0) >= OLDEST:
        return Bench(torch.device("cuda", 0), is_tiny=is_tiny)
    return Bench(torch.device("cpu"), is_tiny=True) if is_tiny and INTERPRETED.value else None


def run(parts: list[Section], bench: Bench | None, budget_s: float) -> list[Line]:
    """Run what there is time for, with a line on stderr for each."""
    lines = []
    begin = time.monotonic()
    for part in parts:
        until = min(begin + budget_s, time.monotonic() + part.budget_s)
        for check in part.checks:
            if bench is None:
                line = Line(part.name, check, NOT_RUN, why=NO_CARD)
            elif time.monotonic() >= until:
                line = Line(part.name, check, LEFT_OUT, why="no time")
            else:
                line = run_one(part.name, check, bench)
                say(f"{time.monotonic() - begin:6.1f} s {line}")
            lines.append(line)
        gc.collect()
    return lines


def run_one(section: str, check: Check, bench: Bench) -> Line:
    """Run a check; whatever it raises is its outcome."""
    try:
        found = check.run(bench)
    except NotRun as lacking:
        return Line(section, check, NOT_RUN, why=str(lacking))
    except Exception as error:
        traceback.print_exc()
        return Line(section, check, FAILED, why=f"{type(error).__name__}: {error}".partition("\n")[0])
    return judged(section, check, found, is_tiny=bench.is_tiny)


def say(line: str) -> None:
    """Tell how far it is."""
    print(f"gpu_check: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
