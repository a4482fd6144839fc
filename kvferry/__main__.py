"""`python -m kvferry` is `kvferry`."""

import sys
from pathlib import Path

if not sys.flags.safe_path and Path(sys.path[0]).resolve() != Path(__file__).resolve().parents[1]:
    del sys.path[0]  # the working directory, which may have folders named like our rooms; the console script has none

from kvferry.cli import main

if __name__ == "__main__":
    sys.exit(main())
