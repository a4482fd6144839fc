"""Runs an engine between two queues: commands between steps, a report after each."""

from __future__ import annotations

from collections.abc import Callable

from engine.api import Command, Report, Shutdown
from engine.core import Engine
from engine.turns import NoTurns, Turns


def run_loop(
    engine: Engine,
    next_command: Callable[[bool], Command | None],
    emit: Callable[[Report], None],
    turns: Turns | None = None,
) -> None:
    """Obey, step and emit until ``Shutdown``.

    ``next_command(block)`` gives the next command or None; it may block only if ``block``, which is when the
    engine has nothing to do. A report is emitted when it holds results or the load has changed; the first
    one, at once, holds the load at the start. A step that computes waits for its turn before the last commands
    are read, so that whoever came meanwhile is in it.
    """
    turns = turns or NoTurns()
    last = engine.report()
    emit(last)
    while True:
        idle = not engine.has_work()
        if idle:
            turns.rest()
            engine.clock.rest()
        if not _obey(engine, next_command, block=idle):
            return
        computes = engine.has_tasks()
        if computes:
            engine.clock.wait(turns.begin)
            if not _obey(engine, next_command, block=False):
                return
        report = engine.step()
        if computes:
            turns.end()
        if report.results or report.load != last.load:
            emit(report)
            last = report


def _obey(engine: Engine, next_command: Callable[[bool], Command | None], *, block: bool) -> bool:
    """Obey the next command and all that wait behind it; False if the loop is to end."""
    command = next_command(block)
    while command is not None:
        if isinstance(command, Shutdown):
            return False
        engine.submit(command)
        command = next_command(False)
    return True
