"""A child doesn't outlive its parent, however the parent ends and whenever it asked."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from runtime.parent_guard import guarded_command, parent_environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")

# The child holds the write end of the pipe that is the test's view of it: end of file is its death.
PARENT = """
    import os, subprocess, sys
    from runtime.parent_guard import guarded_command, parent_environment
    child = sys.argv[1:] if sys.argv[1] != "--guard" else guarded_command(sys.argv[2:])
    process = subprocess.Popen(child, env={**os.environ, **parent_environment()})
    process.wait()
"""
CHILD = """
    import os, time
    from runtime.parent_guard import PARENT_PID_VARIABLE, die_with_parent
    die_with_parent()
    print("guarded", PARENT_PID_VARIABLE in os.environ, flush=True)
    time.sleep(60)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


def test_a_child_is_killed_when_its_parent_is() -> None:
    command = [*python(PARENT), *python(CHILD)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "guarded False\n"
        parent.kill()
        assert parent.stdout.read() == ""


def test_a_program_that_is_not_ours_is_killed_too_and_keeps_its_command_line() -> None:
    program = ["sh", "-c", "cat /proc/$$/cmdline | tr '\\0' ' '; echo; read never < /dev/zero"]
    command = [*python(PARENT), "--guard", *program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline().startswith("sh -c cat")
        parent.kill()
        assert parent.stdout.read() == ""


def test_a_child_whose_parent_has_ended_before_it_asked_ends_at_once() -> None:
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    child = subprocess.run(
        python(CHILD),
        env={**os.environ, "KVFERRY_PARENT_PID": gone},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL
    assert child.stdout == ""


def test_a_child_whose_parent_lives_goes_on() -> None:
    code = "from runtime.parent_guard import die_with_parent; die_with_parent(); print('alive')"
    child = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **parent_environment()},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert child.stdout == "alive\n"
    echo = subprocess.run(guarded_command(["echo", "alive"]), capture_output=True, text=True, timeout=20, check=True)
    assert echo.stdout == "alive\n"
