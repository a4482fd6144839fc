"""An environment for each client, with its pins alone; `python -m tests.clients.setup` makes those that are missing."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from kvferry.model_store import cache_root
from tests.clients.roster import CLIENTS, HERE, LM_EVAL, SHARED, Client

INSTALL_S = 900.0
FOLDER = cache_root() / "clients"
RESULTS = FOLDER / "results.json"
"""Which cells of the newest run were green."""

MADE = ".made"
"""Written last; a folder without it is made anew."""


def environment_of(client: Client) -> Path:
    """Its folder: another one for other pins or another Python."""
    digest = hashlib.sha256(client.pins.read_bytes() + sys.version.encode()).hexdigest()
    return FOLDER / f"{client.folder}-{digest[:12]}"


def ensure(client: Client) -> None:
    """Make the client's environment, unless that was done before."""
    folder = environment_of(client)
    if (folder / MADE).exists():
        return
    sys.stderr.write(f"installing {client.name} {client.version}\n")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if client.is_node:
        _install_node(client, folder)
    else:
        _install_python(client, folder)
    (folder / MADE).touch()


def _install_python(client: Client, folder: Path) -> None:
    _run(sys.executable, "-m", "venv", str(folder))
    pip = (str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check")
    _run(*pip, "--requirement", str(client.pins))


def _install_node(client: Client, folder: Path) -> None:
    """Node too is among the pins: clients want newer ones than systems have."""
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("npm is needed (on Debian: apt-get install nodejs npm)")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / client.folder / name, folder)
    _run(npm, "ci", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=INSTALL_S, stdout=sys.stderr)


def command_of(client: Client) -> list[str]:
    """What runs the client's program, up to its arguments; in the environment's folder."""
    runtime = "node_modules/.bin/node" if client.is_node else "bin/python"
    return [str(environment_of(client) / runtime), str(client.program_path)]


def variables_of(client: Client) -> dict[str, str]:
    """Ours but for what would point a client elsewhere, or at this project's packages."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OPENAI_"))}
    return own | {"PYTHONPATH": str(SHARED), "DO_NOT_TRACK": "1"}


if __name__ == "__main__":
    for each in (*CLIENTS, LM_EVAL):
        ensure(each)
