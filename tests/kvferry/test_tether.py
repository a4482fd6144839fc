"""A tied process doesn't outlive its parent, however the parent ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvferry import tether

Eventually = Callable[[Callable[[], object]], object]

PARENT = """
import subprocess, sys
from kvferry.tether import tied_command
child = subprocess.Popen(tied_command(["/bin/sleep", "1000"]))
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_foreign_program_ends_with_its_parent(
    number: signal.Signals,
    environ: dict[str, str],
    eventually: Eventually,
    is_alive: Callable[[int], bool],
) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        eventually(lambda: b"sleep" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"/")[-1])
        assert is_alive(child)
        parent.send_signal(number)
    eventually(lambda: not is_alive(child))


def test_a_parent_that_is_gone_already_is_noticed() -> None:
    command = [sys.executable, "-I", "-S", tether.__file__, str(os.getpid() + 1), "/bin/echo", "hi"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_program_keeps_its_arguments_and_its_exit_code() -> None:
    command = tether.tied_command(["/bin/sh", "-c", 'echo "$0|$1"; exit 3', "a b", "--c"])
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (3, b"a b|--c\n")
