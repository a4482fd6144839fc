#!/usr/bin/env bash
# Whether the kernels for GPUs are right on this machine's card, and how fast they are: a table in under 8 minutes.
#
#   scripts/gpu_check.sh [--out FILE] [--only PART ...]
#
# --out writes the table to a file, too; parts are card, correctness, attention, others, hand-over and model.
#
# From a checkout as it is: nothing is installed, built or fetched. $PYTHON (default python3) must be 3.11 or newer and
# have torch 2.10 or newer, triton and numpy; triton itself wants a C compiler. Its compiled kernels go to its own cache
# (~/.triton). Exit code: 0 if all that was run is right, and where there is no card ("not run" in each row then); 1 if
# something is wrong, misses its bound or was left out for lack of time; 2 if Python or a package is missing or too old;
# 124 if it hung.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PYTHON=${PYTHON:-python3}
LIMIT_S=475

"$PYTHON" - <<'END' || exit 2
import importlib.metadata, importlib.util, sys
if sys.version_info < (3, 11):
    sys.exit(f"gpu_check: Python {sys.version.split()[0]} is too old, 3.11 is needed (PYTHON=...)")
for name in ("torch", "triton", "numpy"):
    if importlib.util.find_spec(name) is None:
        sys.exit(f"gpu_check: no {name}; torch 2.10 or newer, triton and numpy are needed (PYTHON=...)")
torch = importlib.metadata.version("torch")
if tuple(map(int, torch.split(".")[:2])) < (2, 10):
    sys.exit(f"gpu_check: torch {torch} is too old, 2.10 is needed")
END

[[ " $* " == *" --tiny "* ]] || unset TRITON_INTERPRET # nothing but tests of this program wants the interpreter
export PYTHONPATH=$ROOT:$ROOT/kernels:$ROOT/scripts${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1
exec timeout --kill-after=3 "$LIMIT_S" "$PYTHON" -m gpu_check "$@"
