"""Runs an engine between two queues: commands between steps, a report after each."""

from __future__ import annotations

from collections.abc import Callable

from engine.api import Command, Report, Shutdown
from engine.core import Engine


def run_loop(
    engine: Engine,
    next_command: Callable[[bool], Command | None],
    emit: Callable[[Report], None],
    begin: Callable[[], None] = lambda: None,
    rest: Callable[[], None] = lambda: None,
) -> None:
    """Obey, step and emit until ``Shutdown``.

    ``next_command(block)`` gives the next command or None; it may block only if ``block``, which is when the
    engine has nothing to do. A report is emitted when it holds results or the load has changed; the first
    one, at once, holds the load at the start. ``begin`` is called before each step, ``rest`` when there is no work.
    """
    last = engine.report()
    emit(last)
    while True:
        idle = not engine.has_work()
        if idle:
            rest()
        command = next_command(idle)
        while command is not None:
            if isinstance(command, Shutdown):
                return
            engine.submit(command)
            command = next_command(False)
        begin()
        report = engine.step()
        if report.results or report.load != last.load:
            emit(report)
            last = report
