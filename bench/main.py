"""One benchmark from settings to reports."""

import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import machine
from bench.campaign import Campaign, Run
from bench.errors import BenchError
from bench.loop import run_loop
from bench.passages import load_passages
from bench.plots import MISSING, can_plot, write_plots
from bench.progress import Progress
from bench.report import report
from bench.results import results, write_results
from bench.self_check import TOLERANCE, as_text, self_check, worst
from bench.settings import Settings


def run(settings: Settings, default_tokenizer: Callable[[], Path]) -> int:
    """Measure; print the report on stdout, write what was asked for; return the exit code.

    It is 0 if every run brought output, else 1. Interrupted, what is done is reported, and
    `KeyboardInterrupt` raised then. Raises `BenchError`.
    """
    _check_outputs(settings)
    passages = load_passages(settings.tokenizer or default_tokenizer(), settings.dataset)
    _allow_connections()
    progress = Progress(sys.stderr, len(settings.seeds))
    if settings.plot_folder and not can_plot():
        progress.say(MISSING)
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    about = machine.describe()
    try:
        run_loop(Campaign(settings, passages, progress.listener()).run())
    finally:
        progress.close()
        if progress.runs:
            _report(settings, progress, about, started_at)
    return 0 if all(each.figures.output_tokens for each in progress.runs) else 1


def check_itself(settings: Settings, default_tokenizer: Callable[[], Path]) -> int:
    """Measure a built-in server of known delays; print and return whether the figures are right (0) or not (1)."""
    checks = self_check(load_passages(settings.tokenizer or default_tokenizer(), settings.dataset))
    sys.stdout.write(as_text(checks))
    return 0 if worst(checks) <= TOLERANCE else 1


def _report(settings: Settings, progress: Progress, about: dict[str, Any], started_at: str) -> None:
    runs: list[Run] = progress.runs
    sys.stdout.write(report(runs, settings))
    sys.stdout.write(f"\n{_footer(settings, about, started_at)}\n")
    sys.stdout.flush()
    if settings.json_path:
        write_results(settings.json_path, results(runs, settings, about, started_at))
        progress.say(f"written: {settings.json_path}")
    if settings.plot_folder and can_plot():
        for path in write_plots(settings.plot_folder, runs):
            progress.say(f"written: {path}")


def _footer(settings: Settings, about: dict[str, Any], started_at: str) -> str:
    seeds = ",".join(str(seed) for seed in settings.seeds)
    place = f"commit {about['commit']}, " if about["commit"] else ""
    return f"{started_at}, {place}{about['cpu']}, {about['cores']} cores, seeds {seeds}"


def _check_outputs(settings: Settings) -> None:
    """Find out before an hour of measuring what would fail after it."""
    path = settings.json_path
    if path and not path.absolute().parent.is_dir():
        raise BenchError(f"--json: {path.parent} is no folder")
    if path and path.is_dir():
        raise BenchError(f"--json: {path} is a folder")


def _allow_connections() -> None:
    """Raise the soft limit of open files to the hard one: each request has a connection."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # then the old limit stays
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
