"""The package needs Triton only where a GPU's kernels are asked for, and none of those is left out of the compiling."""

import re
import subprocess
import sys
from pathlib import Path

from kvferry_kernels import gpu
from kvferry_kernels.gpu.ahead import MODULES

FOLDER = Path(gpu.__file__).parent


def test_the_cpu_kernels_import_where_triton_isnt_installed() -> None:
    code = "import sys; sys.modules['triton'] = None; from kvferry_kernels import decoder, gpu, ops"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0


def test_every_kernel_that_is_launched_is_compiled_ahead() -> None:
    launching = {
        path.stem for path in FOLDER.glob("*.py") if re.search(r"^def shipped\b|_kernel\[", path.read_text(), re.M)
    }
    assert launching - {"ahead"} == set(MODULES)
