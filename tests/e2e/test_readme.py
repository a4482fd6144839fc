"""A newcomer with README alone: each block marked `runnable`, in order, as it is printed.

A block marked `background` stays in the foreground of a terminal of its own: the blocks after it run beside it, and
Ctrl-C ends it before the next one, or at the end.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from tests.docs.blocks import README, ROOT, Block, fenced
from tests.e2e.conftest import END_S, START_S, until
from tests.support.terminal import interruptible

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.nats]

PORT = 8000
BLOCK_S = 180.0
QUESTION, ANSWER = "capital of Japan", "Tokyo"
ENDED_BY_CTRL_C = {128 + signal.SIGINT, -signal.SIGINT}
"""`kvferry` says 130; `make` lets the signal end it."""

NOT_A_NEWCOMERS = ("MAKE", "MFLAGS", "PYTHON", "VIRTUAL_ENV", "KVFERRY_", "XDG_RUNTIME_DIR")
SCRIPT = 'set -e -o pipefail\nif [ -e "$TERMINAL" ]; then . "$TERMINAL"; fi\n{block}\nexport -p > "$TERMINAL"\n'
"""One terminal for all blocks: what one exports, the next one has."""


class Terminal:
    """Runs blocks in the repository's root, with no more than a newcomer has in the environment.

    The cache is one in which the model is converted, and no other stack of this user is to be found.
    """

    def __init__(self, folder: Path, models: Path) -> None:
        cache = folder / "cache"
        cache.mkdir()
        (cache / "models").symlink_to(models)
        ours = {"TERMINAL": str(folder / "terminal"), "KVFERRY_CACHE": str(cache)}
        theirs = {name: value for name, value in os.environ.items() if not name.startswith(NOT_A_NEWCOMERS)}
        self._environment = theirs | ours
        self._program = folder / "block.py"

    def start(self, block: Block) -> subprocess.Popen[str]:
        """Its process, first of a group of its own: what Ctrl-C would reach."""
        lines = block.text
        if block.language == "python":
            self._program.write_text(block.text, encoding="utf-8")
            lines = f"python {self._program}"
        return subprocess.Popen(
            ["bash", "-c", SCRIPT.format(block=lines)],
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=interruptible,
        )

    def run(self, block: Block) -> str:
        """What it prints; fails unless every command of it exits with 0."""
        process = self.start(block)
        try:
            said, _ = process.communicate(timeout=BLOCK_S)
        finally:
            kill(process)
        assert process.returncode == 0, f"{block.text}: exit code {process.returncode}\n{said[-4000:]}"
        return said


class Background:
    """A block that runs until Ctrl-C."""

    def __init__(self, terminal: Terminal, block: Block) -> None:
        self._process = terminal.start(block)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ready(self) -> None:
        """It has printed the command to paste."""

        def printed() -> bool:
            assert self._process.poll() is None, "".join(self.lines[-60:])
            return any(line.startswith("curl ") for line in self.lines)

        try:
            until(printed, START_S, "ready")
        except BaseException:
            kill(self._process)
            raise

    def end(self) -> None:
        """Ctrl-C: it ends by itself, and nothing of it stays."""
        try:
            os.killpg(self._process.pid, signal.SIGINT)
            assert self._process.wait(END_S) in ENDED_BY_CTRL_C, "".join(self.lines[-60:])
            self._reader.join(END_S)
            until(port_is_free, END_S, f"port {PORT} is free again")
        finally:
            kill(self._process)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            self.lines.extend(iter(stream.readline, ""))


def kill(process: subprocess.Popen[str]) -> None:
    """Whatever is left of a process that ought to have ended; `up`'s children end with it."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(END_S)


def port_is_free() -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError:
            return False
        return True


@pytest.fixture
def terminal(tmp_path: Path, model_dir: Path) -> Terminal:
    """A terminal where `make setup` has run, and the port of README is free."""
    if missing := [name for name in ("bash", "make", "curl") if shutil.which(name) is None]:
        pytest.skip(f"README's commands need {', '.join(missing)}")
    if not (ROOT / ".venv" / "bin" / "kvferry").exists():
        pytest.skip("there is no .venv/bin/kvferry: `make setup` makes it")
    if subprocess.run(["make", "--question", "setup"], cwd=ROOT, check=False).returncode:
        pytest.skip(".venv is older than what it follows from: `make setup` renews it")
    if not port_is_free():
        pytest.skip(f"README's commands need port {PORT}, and something listens there")
    return Terminal(tmp_path, model_dir.parent)


def test_every_runnable_block_works_as_printed(terminal: Terminal) -> None:
    running: Background | None = None
    try:
        for block in fenced(README.read_text(encoding="utf-8")):
            if "background" in block.words:
                if running:
                    running.end()
                running = Background(terminal, block)
                running.ready()
            elif "runnable" in block.words:
                said = terminal.run(block)
                assert QUESTION not in block.text or ANSWER in said, said
    finally:
        if running:
            running.end()
