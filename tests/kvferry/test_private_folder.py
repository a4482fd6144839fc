"""The private folder: ours alone, and gone with us."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kvferry.private_folder import private_folder


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_nobody_else_can_look_inside_and_nothing_stays(base: Path) -> None:
    with private_folder() as folder:
        (folder / "secret").write_text("x")
        assert folder.parent == base
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert list(base.iterdir()) == []


def test_folders_of_the_living_are_left_alone() -> None:
    with private_folder() as first, private_folder() as second:
        assert first.exists()
        assert second.exists()


def test_folders_of_the_killed_are_removed(base: Path, environ: dict[str, str]) -> None:
    code = (
        "import os, signal; from kvferry.private_folder import private_folder\n"
        "with private_folder() as folder:\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environ = {**environ, "XDG_RUNTIME_DIR": str(base)}
    subprocess.run([sys.executable, "-c", code], env=environ, check=False, timeout=60)
    (left,) = base.iterdir()
    with private_folder():
        assert not left.exists()


def test_a_runtime_folder_that_is_not_there_is_no_obstacle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "nothing"))
    with private_folder() as folder:
        assert folder.is_dir()
