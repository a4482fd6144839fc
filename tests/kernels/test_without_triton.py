"""A machine without a GPU needs no Triton."""

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["triton"] = None
from kvferry_kernels import decoder, ops, reference
"""


def test_the_operations_are_imported_without_triton() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
