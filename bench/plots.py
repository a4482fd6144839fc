"""PNG plots, one a workload; made where matplotlib is installed."""

import importlib.util
from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from bench.campaign import Run
from bench.errors import BenchError
from bench.figures import gaps_in_window
from bench.summary import Row, summarize
from bench.workload import Workload

MISSING = "no plots: matplotlib is not installed (pip install 'kvferry[bench]')"


def can_plot() -> bool:
    """Return whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def write_plots(folder: Path, runs: Sequence[Run]) -> list[Path]:
    """Write ``<workload>.png`` for each workload; return the files. Raises `BenchError`."""
    from matplotlib.figure import Figure

    files = []
    for workload, rows in groupby(summarize(runs), lambda row: row.workload):
        figure = Figure(figsize=(11, 8), layout="constrained")
        figure.suptitle(f"{workload.name}: {workload.title()}")
        _draw(figure.subplots(2, 2), list(rows), runs, workload)
        path = folder / f"{workload.name}.png"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=110)
        except OSError as error:
            raise BenchError(f"--plot: {path} can't be written ({error.strerror})") from error
        files.append(path)
    return files


def _draw(axes: Any, rows: list[Row], runs: Sequence[Run], workload: Workload) -> None:
    _throughput(axes[0][0], rows)
    for row in rows:
        own = [run for run in runs if run.workload == workload and run.target == row.target]
        name = row.target.name
        _distribution(axes[0][1], name, [ttft for run in own for ttft in _ttfts_ms(run)])
        _distribution(axes[1][0], name, [gap for run in own for gap in _gaps_ms(run)])
        _course(axes[1][1], name, own[0])
    for axis, title, unit in (
        (axes[0][1], "time to first token", "ms"),
        (axes[1][0], "gaps between tokens", "ms"),
        (axes[1][1], "gaps in the course of the first round", "s from its start"),
    ):
        axis.set_title(title)
        axis.set_xlabel(unit)
        axis.grid(alpha=0.3)
        if axis.has_data():
            axis.legend()


def _throughput(axis: Any, rows: list[Row]) -> None:
    spreads = [row.spreads["output tokens/s"] for row in rows]
    medians = [spread.median for spread in spreads]
    below = [spread.median - spread.least for spread in spreads]
    above = [spread.most - spread.median for spread in spreads]
    axis.bar([row.target.name for row in rows], medians, yerr=[below, above], capsize=6, width=0.5)
    axis.set_title("output tokens/s (median, least, most)")


def _distribution(axis: Any, name: str, times_ms: list[float]) -> None:
    """Draw which share of the times is below what."""
    if not times_ms:
        return
    ordered = sorted(times_ms)
    shares = [(i + 1) / len(ordered) for i in range(len(ordered))]
    axis.step(ordered, shares, where="post", label=name)
    axis.set_xscale("log")
    axis.set_ylim(0, 1)


def _course(axis: Any, name: str, run: Run) -> None:
    start_s = run.sent.start_s
    points = [
        (after - start_s, (after - before) * 1000)
        for answer in run.sent.answers
        for before, after in pairwise(answer.times)
        if after > before
    ]
    if points:
        when, gaps = zip(*points, strict=True)
        axis.plot(when, gaps, linestyle="none", marker=".", markersize=2, label=name)
        axis.set_yscale("log")
        axis.set_ylabel("ms")


def _ttfts_ms(run: Run) -> list[float]:
    if run.sent.is_window:
        return [answer.ttft_s * 1000 for answer in run.sent.longs if answer.times]
    return [answer.ttft_s * 1000 for answer in run.sent.answers if answer.is_ok]


def _gaps_ms(run: Run) -> list[float]:
    if run.sent.is_window:
        return [gap * 1000 for gap in gaps_in_window(run.sent)]
    return [gap * 1000 for answer in run.sent.answers if answer.is_ok for gap in answer.gaps_s()]
