"""Other commands find a live stack by its private file, and none of a dead one."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvferry.errors import UsageError
from kvferry.stack_file import StackFile, find_stack, live_stacks, published, stacks_folder

OWNER = """
import sys
from pathlib import Path
from kvferry.stack_file import StackFile, published
with published(StackFile(7, 8000, "nats://a", "", ("http://h:8000",), "/c"), Path(sys.argv[1])):
    print("there", flush=True)
    sys.stdin.read()
"""


def stack(port: int = 8000, pid: int = 7) -> StackFile:
    return StackFile(pid, port, "nats://u:secret@h:1", "redis://h:2", (f"http://h:{port}",), "/control")


def test_a_stack_is_found_while_it_lives_and_not_after(tmp_path: Path) -> None:
    with published(stack(), tmp_path):
        (path,) = tmp_path.iterdir()
        assert path.stat().st_mode & 0o777 == 0o600
        assert live_stacks(tmp_path) == [stack()]
        assert find_stack("", tmp_path) == stack()
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_a_killed_owner_counts_for_nothing_and_goes(tmp_path: Path, environ: dict[str, str]) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        assert [each.port for each in live_stacks(tmp_path)] == [8000]
        owner.kill()
    assert live_stacks(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_of_several_one_must_be_chosen_by_port_process_or_name(tmp_path: Path) -> None:
    with published(stack(8000, 7), tmp_path), published(stack(9000, 8), tmp_path):
        with pytest.raises(UsageError, match="8000-7, 9000-8"):
            find_stack("", tmp_path)
        for name in ("9000", "8", "9000-8"):
            assert find_stack(name, tmp_path) == stack(9000, 8)
        with pytest.raises(UsageError, match="no stack '1234'"):
            find_stack("1234", tmp_path)


def test_none_at_all_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no stack of this user is running"):
        find_stack("", tmp_path)


def test_the_folder_is_private_and_found_without_a_runtime_folder_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    monkeypatch.setenv("KVFERRY_CACHE", str(tmp_path / "cache"))
    assert stacks_folder().stat().st_mode & 0o777 == 0o700
    (tmp_path / "runtime").mkdir()
    with published(stack()):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
        assert find_stack() == stack()
        assert stacks_folder() == tmp_path / "runtime" / "kvferry"


def test_a_file_of_another_version_is_refused_in_one_line(tmp_path: Path, eventually: Callable[..., object]) -> None:
    with published(stack(), tmp_path):
        (path,) = tmp_path.iterdir()
        path.write_text("[]")
        with pytest.raises(UsageError, match="not what this version"):
            find_stack("", tmp_path)
