"""Tie a process to its parent: when the parent dies, however it dies, the kernel ends the child.

Run as a program (``tether.py PARENT_PID COMMAND ...``) it ties itself and becomes the command; so
are programs tied that aren't ours. It is then run by path with ``-I -S``: standard library only.
"""

import ctypes
import os
import signal
import sys

PARENT_VARIABLE = "KVFERRY_PARENT_PID"
"""Names the process that a child of ours must not outlive."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with(parent_pid: int) -> None:
    """Have this process killed when its parent ends; leave at once if that has happened already.

    The kernel watches the parent's *thread* that forked, so parents start children from a thread
    that lives as long as they do. An exec keeps the tie.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))
    if os.getppid() != parent_pid:  # the parent ended before the tie was made
        sys.exit(1)


def tie_if_asked() -> None:
    """Tie this process to the parent named in the environment, and take the name out of it."""
    parent_pid = os.environ.pop(PARENT_VARIABLE, "")
    if parent_pid:
        die_with(int(parent_pid))


def tied_command(command: list[str]) -> list[str]:
    """Return the command line that runs `command` tied to this process."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
