"""The embedded brokers: real servers that come, go, and let in only who has the password."""

import asyncio
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import nats
import pytest
import redis
from nats.errors import NoRespondersError
from nats.js.errors import ServiceUnavailableError
from redis.backoff import NoBackoff
from redis.retry import Retry

from kvferry import brokers
from kvferry.broker_access import ROLES
from kvferry.brokers import Broker, nats_broker, running, valkey_broker
from kvferry.errors import BrokerError

pytestmark = pytest.mark.nats

NO_RETRY = Retry(NoBackoff(), 0)

Configure = Callable[[Path], Broker]
KINDS = pytest.mark.parametrize("configure", [nats_broker, valkey_broker])


@KINDS
def test_a_broker_answers_while_it_runs_and_not_before_or_after(configure: Configure, tmp_path: Path) -> None:
    with running(configure, tmp_path) as broker:
        assert broker.answers()
    assert not broker.answers()


@KINDS
def test_files_with_passwords_are_readable_by_their_owner_alone(configure: Configure, tmp_path: Path) -> None:
    configure(tmp_path)
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


@KINDS
def test_no_password_stands_on_a_command_line(configure: Configure, tmp_path: Path) -> None:
    broker = configure(tmp_path)
    for url in broker.urls.values():
        password = urlsplit(url).password
        assert password
        assert password not in " ".join(broker.command)


@KINDS
def test_passwords_and_ports_are_new_each_time(configure: Configure, tmp_path: Path) -> None:
    first, second = configure(tmp_path), configure(tmp_path)
    assert not set(first.urls.values()) & set(second.urls.values())


@KINDS
def test_each_role_has_a_password_of_its_own(configure: Configure, tmp_path: Path) -> None:
    broker = configure(tmp_path)
    assert set(broker.urls) == set(ROLES)
    assert len({urlsplit(url).password for url in broker.urls.values()}) == len(ROLES)


@KINDS
def test_a_broker_comes_back_on_its_port_with_its_password(configure: Configure, tmp_path: Path) -> None:
    with running(configure, tmp_path) as broker:
        pass
    with running(lambda folder: broker, tmp_path) as again:
        assert again.urls == broker.urls
        assert again.answers()


def test_nats_has_its_default_payload_limit_and_no_jetstream(nats_url: str) -> None:
    async def look() -> int:
        client = await nats.connect(nats_url)
        with pytest.raises((ServiceUnavailableError, NoRespondersError)):
            await client.jetstream().account_info()
        limit = client.max_payload
        await client.close()
        return limit

    assert asyncio.run(look()) == 1 << 20


def test_nats_lets_nobody_in_without_the_password(nats_url: str) -> None:
    address = urlsplit(nats_url)
    for login in ("{}", '{"user":"test","pass":"wrong"}'):
        # nats-py leaves a socket open when it is refused, so this speaks NATS itself
        with socket.create_connection((address.hostname, address.port), timeout=20) as client:
            client.sendall(f"CONNECT {login}\r\nPING\r\n".encode())
            answer = b"".join(iter(lambda: client.recv(4096), b""))
        assert b"-ERR 'Authorization Violation'" in answer
        assert b"PONG" not in answer


def test_valkey_works_with_its_client(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.set("key", "value", ex=10)
        assert client.get("key") == b"value"


def test_valkey_lets_nobody_in_without_the_password(redis_url: str) -> None:
    address = urlsplit(redis_url)
    with (
        redis.Redis(str(address.hostname), int(address.port or 0), retry=NO_RETRY) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()


@KINDS
def test_a_taken_port_is_left_for_another(
    configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with running(configure, tmp_path / "a") as first:
        ports = iter([first.port, brokers.free_port()])
        monkeypatch.setattr(brokers, "free_port", lambda: next(ports))
        with running(configure, tmp_path / "b") as second:
            assert second.port != first.port
            assert second.answers()


def test_a_broker_that_cant_run_says_its_last_words(tmp_path: Path) -> None:
    def broken(folder: Path) -> Broker:
        broker = valkey_broker(folder)
        with (folder / "valkey.conf").open("a") as config:
            config.write("no-such-word 1\n")
        broker.log.write_text("a bad day\n")
        return broker

    with (
        pytest.raises(BrokerError, match="valkey did not come up: a bad day"),
        running(broken, tmp_path),
    ):
        pytest.fail("it must not come up")


@KINDS
def test_a_broker_ends_with_the_process_that_started_it(
    configure: Configure,
    tmp_path: Path,
    environ: dict[str, str],
    eventually: Callable[[Callable[[], object]], object],
) -> None:
    code = (
        "import sys; from pathlib import Path; from kvferry import brokers\n"
        f"with brokers.running(brokers.{configure.__name__}, Path(sys.argv[1])) as broker:\n"
        "    print(broker.port, flush=True); sys.stdin.read()\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        port = int(owner.stdout.readline())
        owner.kill()
    eventually(lambda: refuses(port))


def refuses(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
