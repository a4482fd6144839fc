"""A real stack under load and under fire: what is lost, repeated, wrong or leaked. A Markdown table.

    python scripts/under_fire.py [--quick] [--rounds 3] [--streams 16] [--only WORD]

2 prefill and 2 decode workers and two gateways. First every request is asked once on the undisturbed stack; then,
while streams go round the same requests, each fault happens again and again, with recovery between. Exit code 1 if
anything was lost, repeated, wrong or leaked, or the stack didn't recover by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from fire.faults import FAULTS, Fault
from fire.live import Stack
from fire.load import Load

MODEL = "SmolLM2-135M-Instruct"
RECOVERY_S = 120.0
"""A worker that starts again takes about 15 s on two busy cores; a recovery that takes longer than this is none."""

NOTICED_S = 3.0
"""Gateways call a worker silent after 2.5 s: before that everything looks healthy."""

AFTER_S = 10.0
"""The load goes on for so long after the last fault."""

FLAGS = ("--kv-cache-memory-bytes", "256MiB", "--served-model-name", MODEL)


@dataclass(slots=True)
class Row:
    """What became of requests that ended while this fault happened and was mended."""

    times: int = 0
    kinds: Counter[str] | None = None
    longest_s: float = 0.0
    error: str = ""


def main() -> int:
    """Run, print the table, return the exit code."""
    asked = parse()
    faults = [fault for fault in FAULTS if (fault.is_quick or not asked.quick) and asked.only in fault.name]
    log = Path(tempfile.mkdtemp(prefix="under-fire-")) / "up.log"
    stack = Stack(log, *FLAGS)
    say(f"starting the stack; its output goes to {log}")
    try:
        stack.wait()
        return asyncio.run(fire(asked, stack, faults))
    finally:
        stack.end()


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one of each main fault")
    parser.add_argument("--rounds", type=int, default=0, help="times that each fault happens; default 3, quick 1")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--only", default="", metavar="WORD", help="faults whose name has this in it")
    asked = parser.parse_args()
    asked.rounds = asked.rounds or (1 if asked.quick else 3)
    return asked


async def fire(asked: argparse.Namespace, stack: Stack, faults: list[Fault]) -> int:
    """Reference, load with faults, count."""
    load = Load(stack.urls, MODEL)
    say("the undisturbed run")
    await load.reference(asked.streams)
    started = time.monotonic()
    running = asyncio.create_task(load.run(asked.streams))
    rows = {fault.name: Row(kinds=Counter()) for fault in faults}
    for number in range(asked.rounds):
        for fault in faults:
            await one(number, fault, rows[fault.name], stack, load, 0.2 if asked.quick else 1.0)
    await asyncio.sleep(AFTER_S)
    seconds = time.monotonic() - started
    load.stop()
    say(f"the load ends after {seconds:.0f} s; {load.num_open} requests are open")
    await running
    await load.close()
    leaked = await asyncio.to_thread(stack.leaked)
    return report(load, rows, leaked, seconds)


async def one(number: int, fault: Fault, row: Row, stack: Stack, load: Load, share: float) -> None:
    """Do harm once, and wait until the stack has mended itself."""
    before = load.count.kinds.copy()
    started = time.monotonic()
    row.times += 1
    try:
        await asyncio.to_thread(fault.harm, stack, load, share)
        harmed = time.monotonic()
        await asyncio.sleep(NOTICED_S)
        await asyncio.to_thread(stack.until, stack.healthy, RECOVERY_S, "recovery")
        await fresh(load, stack)
        row.longest_s = max(row.longest_s, time.monotonic() - harmed)
    except (TimeoutError, LookupError, ProcessLookupError, subprocess.SubprocessError) as error:
        row.error = f"{type(error).__name__}: {error}"
    assert row.kinds is not None
    row.kinds += load.count.kinds - before
    seen = dict(load.count.kinds - before)
    say(f"round {number + 1}: {fault.name}: {time.monotonic() - started:.0f} s, {seen or 'no ending'} {row.error}")


async def fresh(load: Load, stack: Stack) -> None:
    """Some requests have ended well since: it serves again."""
    wanted = load.count.kinds["ok"] + 8
    await asyncio.to_thread(stack.until, lambda: load.count.kinds["ok"] >= wanted, RECOVERY_S, "answers again")


def report(load: Load, rows: dict[str, Row], leaked: int, seconds: float) -> int:
    """Print the tables; return the exit code."""
    kinds, codes = load.count.kinds, load.count.codes
    served = sum(kinds.values()) - kinds["cut"]
    print(f"Command: `python {shlex.join(sys.argv)}`; {seconds:.0f} s of load, {sum(kinds.values())} requests.\n")
    print("| lost | repeated | wrong | leaked | right | ended honestly | cut with their gateway |")
    print("|---|---|---|---|---|---|---|")
    honest = f"{kinds['failed']} ({100 * kinds['failed'] / max(1, served):.1f} %)"
    counts = [kinds["lost"], kinds["repeated"], kinds["wrong"], leaked, kinds["ok"], honest, kinds["cut"]]
    print("| " + " | ".join(map(str, counts)) + " |\n")
    print("| fault | times | right | failed | cut | bad | mended after at most |\n|---|---|---|---|---|---|---|")
    for name, row in rows.items():
        seen = row.kinds or Counter()
        bad = seen["lost"] + seen["repeated"] + seen["wrong"]
        mended = row.error or f"{row.longest_s:.0f} s"
        print(f"| {name} | {row.times} | {seen['ok']} | {seen['failed']} | {seen['cut']} | {bad} | {mended} |")
    if codes:
        print("\nHonest ends by code: " + ", ".join(f"{code} {n}" for code, n in codes.most_common()) + ".")
    for note in load.count.notes[:20]:
        say(note[:2000])
    failed = kinds["lost"] + kinds["repeated"] + kinds["wrong"] + leaked
    return 1 if failed or any(row.error for row in rows.values()) else 0


def say(line: str) -> None:
    """Progress, apart from the table."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
