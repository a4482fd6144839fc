"""Processes that Ctrl-C can end, even where this one was started in the background and ignores it."""

import signal


def interruptible() -> None:
    """For ``preexec_fn``: a shell lets its background jobs ignore SIGINT, and they pass that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
