"""How far a benchmark is: a bar where a terminal shows it, else a line a run."""

import asyncio
import time
from typing import TextIO

from bench.campaign import Listener, Run
from bench.load import OnDone
from bench.target import Target
from bench.workload import Workload

_WIDTH = 30
_PAUSE_S = 0.25
"""Time between two drawings: a terminal must not cost the generator time."""


class Progress:
    """Writes to `stream`, and keeps the runs that are done."""

    def __init__(self, stream: TextIO, num_rounds: int) -> None:
        self._stream = stream
        self._num_rounds = num_rounds
        self._bar: _Bar | None = None
        self.runs: list[Run] = []

    def listener(self) -> Listener:
        """Return who is told."""
        return Listener(self._start, self._end)

    def say(self, line: str) -> None:
        """Write a line."""
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def _start(self, workload: Workload, target: Target, number: int, num_requests: int) -> OnDone:
        if not self._stream.isatty():
            return lambda num_done: None
        label = f"{workload.name} {target.name} {number + 1}/{self._num_rounds}"
        self._bar = _Bar(self._stream, label, num_requests, workload.duration_s)
        self._bar.tick()
        return self._bar.update

    def close(self) -> None:
        """Take the bar of a run that was broken off from the terminal."""
        if self._bar:
            self._bar.erase()
            self._bar = None

    def _end(self, run: Run) -> None:
        self.close()
        self.runs.append(run)
        figures = run.figures
        failed = sum(figures.errors.values())
        ttft = f", TTFT p50 {figures.ttft.p50:.1f} ms" if figures.ttft else ""
        itl = f", ITL p50 {figures.itl.p50:.1f} ms" if figures.itl else ""
        self.say(
            f"{run.workload.name} {run.target.name} seed {run.seed}: {figures.output_tokens_per_s:.1f} output "
            f"tokens/s{ttft}{itl}, {figures.num_ok} done, {failed} failed, {figures.wall_s:.1f} s"
        )


class _Bar:
    """One run's, drawn from the event loop of the run."""

    def __init__(self, stream: TextIO, label: str, num_requests: int, duration_s: float) -> None:
        """Without a number of requests the bar fills with time."""
        self._stream, self._label = stream, label
        self._num_requests, self._duration_s = num_requests, duration_s
        self._start_s = time.monotonic()
        self._num_done = 0

    def update(self, num_done: int) -> None:
        """Note how many requests are done; they are shown at the next drawing."""
        self._num_done = num_done

    def tick(self) -> None:
        """Draw, now and again."""
        self._draw()
        self._timer = asyncio.get_running_loop().call_later(_PAUSE_S, self.tick)

    def erase(self) -> None:
        """Draw no more."""
        self._timer.cancel()
        self._stream.write("\r\x1b[K")

    def _draw(self) -> None:
        passed_s = time.monotonic() - self._start_s
        done, whole = (self._num_done, self._num_requests) if self._num_requests else (passed_s, self._duration_s)
        filled = int(_WIDTH * min(done / whole, 1)) if whole else 0
        count = f"{self._num_done}/{self._num_requests}" if self._num_requests else f"{self._num_done} requests"
        bar = f"[{'#' * filled}{'.' * (_WIDTH - filled)}]"
        self._stream.write(f"\r\x1b[K{self._label} {bar} {count} {passed_s:.0f} s")
        self._stream.flush()
