"""How a process of ours is started: its command line and its environment."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from kvferry.tether import PARENT_VARIABLE


def module_command(module: str) -> list[str]:
    """Return the start of a command line that runs `module` with this interpreter.

    The working directory stays off the import path (``-P``), since our rooms have everyday names,
    unless it is the folder that we run from ourselves.
    """
    source = Path(__file__).resolve().parents[1]
    safe = [] if source == Path.cwd() else ["-P"]
    return [sys.executable, *safe, "-m", module]


def child_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return `environ` with this process as the parent to die with."""
    return {**environ, PARENT_VARIABLE: str(os.getpid())}
