"""Other commands find a live stack by its private file, and none of a dead one."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvferry.broker_access import ROLES, BrokerAccess
from kvferry.errors import UsageError
from kvferry.stack_file import StackFile, find_stack, published, stacks_folder
from runtime.tls import TlsFiles

OWNER = """
import sys
from pathlib import Path
from kvferry.broker_access import ROLES, BrokerAccess
from kvferry.stack_file import StackFile, published
brokers = dict.fromkeys(ROLES, BrokerAccess("nats://a", ""))
with published(StackFile(7, 8000, ("http://h:8000",), "/c", brokers), Path(sys.argv[1])):
    print("there", flush=True)
    sys.stdin.read()
"""


def stack(port: int = 8000, pid: int = 7) -> StackFile:
    brokers = {role: BrokerAccess(f"nats://{role}:secret@h:1", "redis://h:2", TlsFiles(ca="/ca.pem")) for role in ROLES}
    return StackFile(pid, port, (f"http://h:{port}",), "/control", brokers)


def test_a_stack_is_found_while_it_lives_and_not_after(tmp_path: Path) -> None:
    with published(stack(), tmp_path):
        (path,) = tmp_path.iterdir()
        assert path.stat().st_mode & 0o777 == 0o600
        assert find_stack("", tmp_path) == stack()
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_a_killed_owner_counts_for_nothing_and_goes(tmp_path: Path, environ: dict[str, str]) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        assert find_stack("", tmp_path).port == 8000
        owner.kill()
    with pytest.raises(UsageError, match="no stack of this user is running"):
        find_stack("", tmp_path)
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


def test_a_file_of_another_version_is_no_concern_of_whoever_asks_for_another_stack(tmp_path: Path) -> None:
    with published(stack(9000, 8), tmp_path), published(stack(), tmp_path):
        (tmp_path / "9000-8.json").write_text("{}")
        assert find_stack("8000", tmp_path) == stack()
        with pytest.raises(UsageError, match="not what this version"):
            find_stack("9000", tmp_path)
