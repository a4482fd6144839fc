"""Real stacks: `kvferry up` as a user starts it, with real brokers and the real model."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

START_S = 120.0
END_S = 30.0
POLL_S = 0.02


def until(condition: Any, within_s: float, what: str) -> Any:
    """The first true value of ``condition()``; fails when there is none in time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        threading.Event().wait(POLL_S)
    raise AssertionError(f"{what}: not within {within_s} s")


class Up:
    """One `kvferry up`. Lines of its output are kept; workers' status ports are read from them.

    ``texts`` is for those who ask it something: what it answered, by question.
    """

    def __init__(self, *flags: str) -> None:
        command = [sys.executable, "-m", "kvferry", "up", "--port", "0", *flags]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        self.lines: list[str] = []
        self.texts: dict[str, str] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            self.lines.extend(iter(stream.readline, ""))

    def ready(self) -> Up:
        def curl() -> bool:
            assert self.process.poll() is None, "".join(self.lines)
            return any(line.startswith("curl ") for line in self.lines)

        until(curl, START_S, "ready")
        return self

    @property
    def port(self) -> int:
        """Of the first gateway, as `up` chose it."""
        match = re.search(r"http://127\.0\.0\.1:(\d+)/", " ".join(self.curl))
        assert match
        return int(match[1])

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def curl(self) -> list[str]:
        """The command that `up` printed, as a shell would split it."""
        return shlex.split(next(line for line in self.lines if line.startswith("curl ")))

    def status_urls(self) -> dict[str, str]:
        """Newest status address of each worker."""
        found = [re.search(r"(\S+) worker: ready status_url=(\S+)", line) for line in self.lines]
        return {match[1]: match[2] for match in found if match}

    def ledger(self, worker: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.status_urls()[worker]}/debug/ledger", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def metric(self, worker: str, name: str) -> float:
        with urllib.request.urlopen(f"{self.status_urls()[worker]}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        match = re.search(rf"^kvferry_{name} (\S+)$", text, re.MULTILINE)
        assert match, name
        return float(match[1])

    def idle(self, within_s: float) -> None:
        """Every worker is there and holds nothing, and its pool's sum is right."""

        def nothing_held() -> bool:
            try:
                ledgers = [self.ledger(worker) for worker in self.status_urls()]
            except OSError:  # one was killed, and isn't back
                return False
            return all(not led["holds"] and led["pool"]["held"] == 0 for led in ledgers)

        until(nothing_held, within_s, "nothing held")
        for worker in self.status_urls():
            pool = self.ledger(worker)["pool"]
            assert pool["free"] + pool["cached"] == pool["total"]
            assert pool["reserved"] == 0

    def descendants(self) -> list[int]:
        """Process ids below `up`."""
        pids = [self.process.pid]
        for pid in pids:
            for task in Path(f"/proc/{pid}/task").glob("*"):
                pids += [int(child) for child in (task / "children").read_text().split()]
        return pids[1:]

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(END_S)
        self._reader.join(END_S)
        return code


@pytest.fixture(scope="session")
def split(model_dir: Path) -> Iterator[Up]:
    """One prefill and one decode worker, as `make run` starts them."""
    up = Up().ready()
    yield up
    assert up.end() == 0


@pytest.fixture(scope="module")
def pair(model_dir: Path) -> Iterator[Up]:
    """One prefill and two decode workers behind two gateways; who harms one waits until all three are back."""
    up = Up("--decode", "2", "--gateways", "2", "--kv-cache-memory-bytes", "64MiB").ready()
    yield up
    assert up.end() == 0
