"""How a process of ours is started: its command line and its environment."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from kvferry.tether import PARENT_VARIABLE


def module_command(module: str) -> list[str]:
    """The start of a command line that runs `module` with this interpreter."""
    return [sys.executable, "-m", module]


def child_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return `environ` with this process as the parent to die with.

    It keeps the working directory off the import path of our children and theirs, since our rooms have
    everyday names; unless that is the folder that we run from ourselves.
    """
    source = Path(__file__).resolve().parents[1]
    safe = {} if source == Path.cwd() else {"PYTHONSAFEPATH": "1"}
    return {**environ, **safe, PARENT_VARIABLE: str(os.getpid())}
