"""The signals that end `up`, and what each means."""

import signal
import sys
from types import FrameType

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def exit_code_of(number: int) -> int:
    """Return the exit code of a run that this signal ended: only Ctrl-C is no ordinary end."""
    return INTERRUPTED if number == signal.SIGINT else 0


def ending_signals() -> list[signal.Signals]:
    """Return the signals that end us; one that was ignored at start (nohup) stays ignored."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]


def exit_on_signals() -> None:
    """Leave through `SystemExit` on a signal, so that what was started is ended on the way out."""

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(exit_code_of(number))

    for number in ending_signals():
        signal.signal(number, leave)
