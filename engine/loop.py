"""Runs an engine between two queues: commands between steps, a report after each."""

from __future__ import annotations

from collections.abc import Callable

from engine.api import Command, Report, Shutdown
from engine.core import Engine
from engine.turns import NoTurns, Turns

NextCommand = Callable[[float | None], Command | None]
"""The next command, or None if none comes within so many seconds; None waits for one, however long."""


def run_loop(
    engine: Engine,
    next_command: NextCommand,
    emit: Callable[[Report], None],
    turns: Turns | None = None,
) -> None:
    """Obey, step and emit until ``Shutdown``.

    ``next_command`` is waited for only when the engine has nothing to do, or its step isn't due yet; the answers
    to what is obeyed meanwhile are emitted at once. A report is emitted when it holds results or the load has
    changed; the first one, at once, holds the load at the start.
    """
    _Loop(engine, next_command, emit, turns or NoTurns()).run()


class _Loop:
    def __init__(self, engine: Engine, next_command: NextCommand, emit: Callable[[Report], None], turns: Turns) -> None:
        self._engine = engine
        self._next_command = next_command
        self._emit = emit
        self._turns = turns
        self._last = engine.report()

    def run(self) -> None:
        engine, turns = self._engine, self._turns
        self._emit(self._last)
        while True:
            idle = not engine.has_work()
            if idle:
                turns.rest()
                engine.clock.rest()
            if not self._obey(None if idle else 0.0) or not self._await_turn():
                return
            computes = engine.has_tasks()
            if computes:
                turns.begin(engine.num_prompts())
            report = engine.step()
            if computes:
                turns.end()
            self._tell(report)

    def _await_turn(self) -> bool:
        """Obey and answer until a step may begin, so that whoever comes meanwhile is in it; False to end."""
        with self._engine.clock.waiting():
            while self._engine.has_tasks() and (seconds := self._turns.pause()):
                if not self._obey(seconds):
                    return False
                self._tell(self._engine.report())
        return True

    def _tell(self, report: Report) -> None:
        if report.results or report.load != self._last.load:
            self._emit(report)
            self._last = report

    def _obey(self, seconds: float | None) -> bool:
        """Obey the next command and all that wait behind it; False if the loop is to end."""
        command = self._next_command(seconds)
        while command is not None:
            if isinstance(command, Shutdown):
                return False
            self._engine.submit(command)
            command = self._next_command(0.0)
        return True
