"""The rooms: their names are ours alone, `kernels` is none of them, and imports keep to the table."""

import importlib.metadata
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = (
    "gateway",
    "prefill_svc",
    "decode_svc",
    "kvtransfer",
    "engine",
    "runtime",
    "protocol",
    "kvferry_kernels",
    "kvferry",
    "bench",
)


@pytest.mark.parametrize("room", ROOMS)
def test_no_other_distribution_ships_a_room(room: str) -> None:
    owners = importlib.metadata.packages_distributions().get(room, [])
    assert set(owners) <= {"kvferry"}


def test_the_kernels_folder_is_not_a_package() -> None:
    assert (ROOT / "kernels" / "kvferry_kernels" / "__init__.py").exists()
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_our_version_is_none_that_transformers_takes_for_the_kernels_library() -> None:
    from kvferry import __version__

    assert not (0, 18) <= tuple(int(part) for part in __version__.split(".")[:2]) < (0, 20)


def test_transformers_doesnt_take_our_folder_for_the_kernels_library() -> None:
    code = "from transformers.utils import is_kernels_available as a; raise SystemExit(a())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=120, check=False)
    assert done.returncode == 0


def test_every_room_is_in_each_list_of_the_configuration() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    found = {pattern.removesuffix("*") for pattern in config["setuptools"]["packages"]["find"]["include"]}
    assert found == set(ROOMS)
    assert set(config["mypy"]["packages"]) == set(ROOMS)
    assert set(config["importlinter"]["root_packages"]) == set(ROOMS)


def test_who_may_import_whom() -> None:
    program = Path(sysconfig.get_path("scripts")) / "lint-imports"
    done = subprocess.run([program, "--no-logo"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
