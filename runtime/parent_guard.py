"""Children that end when their parent does, however it ends.

Standard library only, and runnable by path: `guarded_command` starts programs that aren't ours
through it.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

PARENT_PID_VARIABLE = "KVFERRY_PARENT_PID"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def parent_environment() -> dict[str, str]:
    """Return what to add to the environment of a child that calls `die_with_parent`."""
    return {PARENT_PID_VARIABLE: str(os.getpid())}


def die_with_parent(parent_pid: int | None = None, *, sig: int = signal.SIGKILL) -> None:
    """Have the kernel send `sig` to this process when its parent ends. Linux; elsewhere nothing.

    Call it first thing in a child. The parent is `parent_pid`, else the one named by
    `parent_environment` (which is used up, so that grandchildren don't inherit it), else whoever
    it is now. If that one has ended already, the signal is sent at once. The parent's thread that
    started this process counts as the parent: start children from a thread that stays.

    Raises:
        OSError: the kernel refused.

    """
    named = os.environ.pop(PARENT_PID_VARIABLE, "")
    if parent_pid is None:
        parent_pid = int(named) if named.isdecimal() else os.getppid()
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(sig), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:  # it ended before the kernel knew of our wish
        os.kill(os.getpid(), sig)


def guarded_command(command: list[str]) -> list[str]:
    """Return a command that becomes `command`, killed when the calling process ends.

    For programs that don't know `die_with_parent`. The process keeps its id and shows the command
    line of `command`.
    """
    script = str(Path(__file__).resolve())
    return [sys.executable, "-I", "-S", script, str(os.getpid()), *command]


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])  # the kernel keeps the wish across exec
