"""`scripts/gpu_check.sh` says "not run" without a card, needs few packages, and what it would run on a card runs.

How a card's figures come out can't be known here; that sizes, references and sections fit together can.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "gpu_check.sh"
TIMEOUT_S = 240.0
PARTS = {"card", "correctness", "attention", "others", "hand-over", "model"}
ROW = re.compile(r"^\| ([a-z-]+) \| (.+) \| (.*) \| (.*) \| (.*) \| (.*) \|$", re.MULTILINE)

SITE = f"""
import sys
from importlib.abc import MetaPathFinder

FEW = {{"torch", "triton", "numpy", "gpu_check", "kvferry_kernels", "engine", "protocol"}}


class Refusing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        top = name.partition(".")[0]
        if top not in FEW and top not in sys.stdlib_module_names and is_ours(importer()):
            raise ImportError(name + " is imported by " + importer())
        return None


def is_ours(file):
    return file.startswith({str(ROOT)!r}) and "site-packages" not in file


def importer():
    frame = sys._getframe(2)
    while frame.f_code.co_filename.startswith("<frozen"):
        frame = frame.f_back
    return frame.f_code.co_filename


sys.meta_path.insert(0, Refusing())
"""
"""What we import is refused but for few packages; what these import by themselves is not."""


@pytest.fixture
def without_packages(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    return folder


def run(site: Path, *flags: str, interpreted: bool) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "PYTHON": sys.executable, "PYTHONPATH": str(site)}
    environment |= {"TRITON_INTERPRET": "1"} if interpreted else {}
    command = [str(SCRIPT), *flags]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=site, check=False
    )


def test_without_a_card_each_row_says_not_run_and_the_table_is_kept(without_packages: Path, tmp_path: Path) -> None:
    file = tmp_path / "table.md"
    done = run(without_packages, "--out", str(file), interpreted=False)
    assert done.returncode == 0, done.stderr
    assert "no NVIDIA card" in done.stdout
    kept = file.read_text(encoding="utf-8")
    assert kept in done.stdout
    rows = ROW.findall(kept)
    assert {row[0] for row in rows} == PARTS
    assert {(row[2], row[3], row[5]) for row in rows} == {("", "", "not run: no NVIDIA card of sm_80 or newer")}


def test_a_table_that_could_not_be_kept_is_refused_before_anything_runs(without_packages: Path) -> None:
    done = run(without_packages, "--out", str(without_packages / "nowhere" / "table.md"), interpreted=False)
    assert done.returncode == 2
    assert "no folder" in done.stderr


def test_what_needs_no_card_is_right_at_tiny_sizes(without_packages: Path) -> None:
    done = run(without_packages, "--tiny", interpreted=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = ROW.findall(done.stdout)
    assert {row[0] for row in rows} == PARTS
    not_run = [row[1] for row in rows if "not run" in row[5]]
    assert all(re.search(r"matmul, fp8|second card by copy", what) for what in not_run)
    assert all(row[2] for row in rows if row[1] not in not_run)
    assert {row[5] for row in rows if row[0] == "correctness"} == {"met"}


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules of the program, as the script finds them."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import gpu_check.__main__ as main

    yield main
    for name in [name for name in sys.modules if name.partition(".")[0] == "gpu_check"]:
        del sys.modules[name]


def lines(program: Any, *checks: Any, budget_s: float = 60.0, is_tiny: bool = False) -> list[Any]:
    bench = program.Bench(program.torch.device("cpu"), is_tiny=is_tiny)
    return list(program.run([program.Section("some", 60.0, checks)], bench, budget_s))


def found(program: Any, value: float) -> Any:
    from gpu_check.check import Found

    return lambda bench: Found("figure", value, "%")


def test_a_value_is_met_or_missed_by_its_bound_and_one_that_is_no_number_is_missed(program: Any) -> None:
    from gpu_check.check import Bound

    least, most = Bound(0.85, "%", at_least=True), Bound(0.85, "%")
    checks = [
        program.Check("what", found(program, value), bound)
        for bound in (least, most)
        for value in (0.84, 0.85, 0.86, float("nan"))
    ]
    bad = [line.is_bad for line in lines(program, *checks)]
    assert bad == [True, False, False, True, False, False, True, True]


def test_times_mean_nothing_where_everything_is_tiny(program: Any) -> None:
    from gpu_check.check import Bound

    checks = [program.Check("what", found(program, 2.0), Bound(1.0, is_timed=timed)) for timed in (True, False)]
    assert [line.is_bad for line in lines(program, *checks, is_tiny=True)] == [False, True]


def test_a_check_that_raises_has_failed_and_the_next_is_run(program: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(bench: Any) -> None:
        raise RuntimeError("out of order")

    def lack(bench: Any) -> None:
        raise program.NotRun("one card")

    checks = [program.Check("one", fail), program.Check("two", lack), program.Check("three", found(program, 1.0))]
    first, second, third = lines(program, *checks)
    assert (first.is_bad, first.why) == (True, "RuntimeError: out of order")
    assert (second.is_bad, second.why) == (False, "one card")
    assert not third.is_bad
    assert "Traceback" in capsys.readouterr().err


def test_what_there_is_no_time_for_is_left_out_and_counts(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 25))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    checks = [program.Check("what", found(program, 1.0))] * 3
    assert [line.is_bad for line in lines(program, *checks, budget_s=70.0)] == [False, True, True]
