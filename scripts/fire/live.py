"""The stack that is fired at: a real `kvferry up`, its processes by name, its health and its ledger."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from fire.line import Line
from kvferry.stack_file import find_stack

START_S = 180.0
END_S = 90.0
POLL_S = 0.1


class Stack:
    """2 prefill and 2 decode workers and two gateways, as a user would start them."""

    def __init__(self, log: Path, *flags: str) -> None:
        """Start it; its output goes to ``log``."""
        self.port = _two_free_ports()
        self.urls = [f"http://127.0.0.1:{self.port + i}" for i in range(2)]
        command = ["up", "--port", str(self.port), "--gateways", "2", "--prefill", "2", "--decode", "2", *flags]
        self._flags = flags
        self._log = log.open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvferry", *command], stdout=self._log, stderr=subprocess.STDOUT
        )
        self.log = log

    def wait(self) -> None:
        """Until all are there."""
        self.until(lambda: self.healthy(), START_S, "the stack is ready")

    def until(self, ask: Callable[[], Any], within_s: float, what: str) -> float:
        """Seconds until it came true. Raises ``TimeoutError``."""
        started = time.monotonic()
        while not ask():
            if self._process.poll() is not None:
                raise RuntimeError(f"`up` ended with {self._process.returncode}; see {self.log}")
            if time.monotonic() - started > within_s:
                raise TimeoutError(f"{what}: not within {within_s:g} s")
            threading.Event().wait(POLL_S)
        return time.monotonic() - started

    def healthy(self, prefill: int = 2, decode: int = 2) -> bool:
        """Whether both gateways hear exactly so many workers, and say that all is well."""
        for url in self.urls:
            health = _get(f"{url}/health")
            seen = health.get("status"), health.get("prefill_workers"), health.get("decode_workers")
            if seen != ("ok", prefill, decode):
                return False
        return True

    def pids(self, *words: str) -> list[int]:
        """Processes of the stack whose command line has all these words, oldest first."""
        found = []
        for child in psutil.Process(self._process.pid).children(recursive=True):
            try:
                line = child.cmdline()
            except psutil.NoSuchProcess:
                continue
            if all(any(word in part for part in line) for word in words):
                found.append((child.create_time(), child.pid))
        return [pid for _, pid in sorted(found)]

    def engine(self, worker: str) -> int:
        """The engine process of a worker."""
        return self._one([pid for pid in self.pids(worker) if pid in self.pids("engine", "--fd")], worker)

    def io(self, worker: str) -> int:
        """The io process of a worker (or a gateway's only one)."""
        return self._one([pid for pid in self.pids(worker) if pid not in self.pids("engine", "--fd")], worker)

    def broker(self, program: str) -> int:
        """A broker's process."""
        return self._one(self.pids(program), program)

    def command(self, *argv: str, check: bool = True) -> str:
        """What a `kvferry` command of an operator says."""
        command = [sys.executable, "-m", "kvferry", *argv, "--stack", str(self.port)]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=check, timeout=300).stdout

    @contextmanager
    def guest(self, role: str) -> Iterator[Line]:
        """One worker more, started by hand, whose line to the bus goes through the ``Line`` that is given."""
        access = find_stack(str(self.port)).brokers[role]
        bus = urlsplit(access.nats_url)
        line = Line(bus.hostname or "127.0.0.1", bus.port or 4222)
        nats_url = bus._replace(netloc=f"{bus.username}:{bus.password}@127.0.0.1:{line.port}").geturl()
        environment = {**os.environ, "KVFERRY_NATS_URL": nats_url, "KVFERRY_REDIS_URL": access.redis_url}
        command = [sys.executable, "-m", "kvferry", role, "--worker-id", f"guest-{role}", "--status-port", "0"]
        process = subprocess.Popen(
            [*command, *self._flags], stdout=self._log, stderr=subprocess.STDOUT, env=environment
        )
        try:
            self.until(lambda: self.healthy(**self.with_guest(role)), START_S, f"a third {role} worker")
            yield line
            process.send_signal(signal.SIGTERM)
            self.until(lambda: process.poll() is not None, END_S, "the guest has left")
        finally:
            process.kill()
            process.wait()
            line.close()

    @staticmethod
    def with_guest(role: str) -> dict[str, int]:
        """How many workers of each kind there are while one more of ``role`` is there."""
        return {"prefill": 2, "decode": 2, role: 3}

    def ledger(self) -> dict[str, Any]:
        """What `kvferry ledger --json` says."""
        found: dict[str, Any] = json.loads(self.command("ledger", "--json", check=False))
        return found

    def leaked(self, within_s: float = 20.0) -> int:
        """Blocks held, promised or quarantined, and holds, that are left over ``within_s`` after the last request."""
        end = time.monotonic() + within_s
        while (left := self._left_over()) and time.monotonic() < end:
            threading.Event().wait(POLL_S)
        return left

    def end(self) -> int:
        """Ctrl-C, and the exit code."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(END_S)
        finally:
            self._process.kill()
            self._log.close()

    def _left_over(self) -> int:
        ledger = self.ledger()
        wrong = sum(not worker["is_right"] for worker in ledger["workers"])
        holds = sum(len(worker["holds"]) for worker in ledger["workers"])
        return int(wrong + holds + sum(ledger["sums"][name] for name in ("held", "quarantined", "reserved")))

    def _one(self, pids: list[int], name: str) -> int:
        if not pids:
            raise LookupError(f"no process of {name}")
        return pids[0]


def send(pid: int, number: signal.Signals) -> None:
    """A signal to one process."""
    os.kill(pid, number)


def _get(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(url, timeout=3) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except (OSError, ValueError):
        return {}


def _two_free_ports() -> int:
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port
