"""The whole stack under load while its parts die: `scripts/under_fire.py`, each main fault once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.nats, pytest.mark.long]

SCRIPT = Path(__file__).parents[2] / "scripts" / "under_fire.py"
MAX_S = 900.0


def test_nothing_is_lost_repeated_wrong_or_leaked_under_fire(model_dir: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--streams", "8"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=MAX_S, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    lost, repeated, wrong, leaked, right, *_ = done.stdout.splitlines()[4].strip("| ").split(" | ")
    assert [lost, repeated, wrong, leaked] == ["0", "0", "0", "0"]
    assert int(right) > 30
