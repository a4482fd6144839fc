"""Runs an engine between two queues: commands between steps, a report after each."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from engine.api import Command, Report, Shutdown
from engine.core import Engine
from engine.turns import NoTurns, Turns

NextCommand = Callable[[float | None], Command | None]
"""The next command, or None if none comes within so many seconds; None waits for one, however long."""

NEWS_S = 0.001
"""Without work it is looked so often whether a grammar is compiled, or what was computed has arrived on the host."""


def run_loop(
    engine: Engine,
    next_command: NextCommand,
    emit: Callable[[Report], None],
    turns: Turns | None = None,
) -> None:
    """Obey, step and emit until ``Shutdown``.

    ``next_command`` is waited for only when the engine has nothing to do, or its step isn't due yet; the answers
    to what is obeyed meanwhile are emitted at once. A report is emitted when it holds results or the load has
    changed; the first one, at once, holds the load at the start. The engine is closed at the end.
    """
    try:
        _Loop(engine, next_command, emit, turns or NoTurns()).run()
    finally:
        engine.close()


class _Heard(Enum):
    NOTHING = auto()
    COMMANDS = auto()
    SHUTDOWN = auto()


class _Loop:
    def __init__(self, engine: Engine, next_command: NextCommand, emit: Callable[[Report], None], turns: Turns) -> None:
        self._engine = engine
        self._next_command = next_command
        self._emit = emit
        self._turns = turns
        self._last = engine.report()
        engine.tell_early(self._tell)

    def run(self) -> None:
        engine, turns = self._engine, self._turns
        self._emit(self._last)
        engine.prepare()
        while True:
            idle = not engine.has_work()
            if idle:
                turns.rest()
                engine.clock.rest()
            if self._obey(self._patience() if idle else 0.0) is _Heard.SHUTDOWN or not self._await_turn():
                return
            computes = engine.has_tasks()
            if computes:
                turns.begin(engine.num_prompts())
            report = engine.step()
            if computes:
                turns.end()
            self._tell(report)

    def _patience(self) -> float | None:
        """Seconds to wait for a command without work."""
        return NEWS_S if self._engine.expects_news else None

    def _await_turn(self) -> bool:
        """Obey and answer until a step should begin, so that whoever comes meanwhile is in it; False to end."""
        engine = self._engine
        with engine.clock.waiting():
            while engine.has_tasks() and (seconds := engine.patience() or self._turns.pause()):
                self._tell(engine.report())
                heard = self._obey(min(seconds, NEWS_S) if engine.expects_news else seconds)
                if heard is _Heard.SHUTDOWN:
                    return False
                if heard is _Heard.COMMANDS:
                    self._tell(engine.report())
        return True

    def _tell(self, report: Report) -> None:
        if report.results or report.load != self._last.load:
            self._emit(report)
            self._last = report

    def _obey(self, seconds: float | None) -> _Heard:
        """Obey the next command and all that wait behind it."""
        heard = _Heard.NOTHING
        while (command := self._next_command(0.0 if heard is _Heard.COMMANDS else seconds)) is not None:
            if isinstance(command, Shutdown):
                return _Heard.SHUTDOWN
            self._engine.submit(command)
            heard = _Heard.COMMANDS
        return heard
