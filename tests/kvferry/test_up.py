"""`kvferry up` with everything real: brokers, model, workers, gateway, and their ends."""

import http.client
import itertools
import json
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from tests.support.terminal import interruptible

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.nats]

DEADLINE_S = 120.0
"""A start takes 10 s on two idle cores."""

KEY = "a-key"

LISTENED = range(20_000, 32_000)
"""Connections get their own ports from 32,768 on: those of other stacks take none of these."""

Eventually = Callable[[Callable[[], object]], object]


def free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    while True:
        first = random.choice(LISTENED)
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


class Up:
    """A running `kvferry up`, and what it has shown so far."""

    def __init__(self, argv: list[str], environ: dict[str, str], cwd: Path) -> None:
        self.port = free_ports(2)
        command = [sys.executable, "-m", "kvferry", "up", "--port", str(self.port), *argv]
        self.process = subprocess.Popen(
            command,
            env=environ,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=interruptible,
        )
        self.shown: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.shown.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def until(self, text: str, after: int = 0) -> str:
        """Wait for a line with `text`, from line number `after` on, and return it."""

        def found() -> list[str]:
            return [line for line in self.shown[after:] if text in line]

        with self._news:
            self._news.wait_for(lambda: found() or self._ended, DEADLINE_S)
            assert found(), "\n".join(self.shown)
            return found()[0]

    def request(self) -> list[str]:
        """The command that it printed, as a shell with the key in its environment takes it."""
        return shlex.split(self.until("curl http://").replace("$KVFERRY_API_KEY", KEY))

    def family(self) -> list[psutil.Process]:
        """All processes that `up` has started, and theirs."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def member(self, *words: str) -> psutil.Process:
        """The direct child whose command line has these words."""
        children = psutil.Process(self.process.pid).children()
        (found,) = [child for child in children if all(word in " ".join(child.cmdline()) for word in words)]
        return found

    def until_healthy(self, num_decode: int) -> None:
        """Wait until the gateway counts its workers and says that all is well."""
        end = time.monotonic() + DEADLINE_S
        while (seen := health(self.port)) != {**seen, "status": "ok", "decode_workers": num_decode}:
            assert time.monotonic() < end, "\n".join([*self.shown, f"last seen: {seen}"])
            time.sleep(0.1)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def running(argv: list[str], environ: dict[str, str], cwd: Path) -> Iterator[Up]:
    up = Up(argv, environ, cwd)
    try:
        yield up
    finally:
        up.end()


@pytest.fixture
def environ(environ: dict[str, str], model_dir: Path, tmp_path: Path) -> dict[str, str]:
    """With the model that is converted already, and a runtime folder of our own to look at."""
    (tmp_path / "runtime").mkdir()
    return {
        **environ,
        "KVFERRY_CACHE": str(model_dir.parents[1]),
        "KVFERRY_KV_CACHE_MEMORY_BYTES": "64MiB",
        "KVFERRY_API_KEY": KEY,
        "XDG_RUNTIME_DIR": str(tmp_path / "runtime"),
        "PYTHONPATH": ":".join(path for path in sys.path if path),
    }


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A working directory with a trap: a module that has the name of one of our rooms."""
    folder = tmp_path / "empty"
    (folder / "engine").mkdir(parents=True)
    (folder / "engine" / "__init__.py").write_text("raise SystemExit('the working directory was imported')")
    return folder


def ask(up: Up) -> str:
    """Send the request that `up` printed from a shell with the key, and return the answer's text."""
    words = up.request()
    address = urlsplit(words[1])
    headers = dict(word.split(": ", 1) for flag, word in itertools.pairwise(words) if flag == "-H")
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
    connection.request("POST", address.path, body=words[-1], headers=headers)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return str(answer["choices"][0]["message"]["content"])


def test_it_answers_recovers_from_deaths_and_ends_on_ctrl_c(
    environ: dict[str, str], empty: Path, tmp_path: Path, eventually: Eventually
) -> None:
    with running([], environ, empty) as up:
        up.until("ready after")
        for name in ("prefill-1", "decode-1"):
            assert any(line.startswith(name) and " blocks, " in line for line in up.shown)
        assert not any("ended unasked" in line for line in up.shown)
        assert ask(up) == "The capital of Japan is Tokyo."
        session = os.getsid(up.process.pid)
        assert {os.getsid(child.pid) for child in up.family()} == {session}
        commands = [" ".join(child.cmdline()) for child in up.family()]
        assert not any(KEY in command or "nats://" in command for command in commands)

        seen = len(up.shown)
        up.member("kvferry decode", "decode-1").kill()
        up.until("decode-1 was ended by SIGKILL; it is started again in 0.5 s", seen)
        up.until("ready", seen)
        seen = len(up.shown)
        up.member("nats-server").kill()
        up.until("nats was ended by SIGKILL", seen)
        up.member("gateway", "gateway-1").kill()
        up.until("gateway-1 was ended by SIGKILL", seen)
        up.until("listening", seen)
        up.until_healthy(num_decode=1)
        assert ask(up) == "The capital of Japan is Tokyo."

        family = up.family()
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(DEADLINE_S) == 130
        eventually(lambda: gone(family))
        assert [path for path in (tmp_path / "runtime").rglob("*") if path.is_file()] == []


def gone(family: list[psutil.Process]) -> bool:
    """Whether none of these runs; what was killed may wait a moment for init to reap it."""
    for child in family:
        with suppress(psutil.NoSuchProcess):
            if child.status() != psutil.STATUS_ZOMBIE:
                return False
    return True


def health(port: int) -> dict[str, object]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/health")
        return dict(json.loads(connection.getresponse().read()))
    except OSError:
        return {}
    finally:
        connection.close()


class Stream:
    """A completion that streams until it is read to its end."""

    def __init__(self, up: Up, num_tokens: int) -> None:
        words = up.request()
        address, body = urlsplit(words[1]), json.loads(words[-1])
        body |= {"stream": True, "max_tokens": num_tokens, "ignore_eos": True}
        headers = dict(word.split(": ", 1) for flag, word in itertools.pairwise(words) if flag == "-H")
        self._connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
        self._connection.request("POST", address.path, body=json.dumps(body), headers=headers)
        self._answer = self._connection.getresponse()
        assert self._answer.readline().startswith(b"data: ")  # it has begun

    def rest(self) -> str:
        try:
            return self._answer.read().decode()
        finally:
            self._answer.close()
            self._connection.close()


def test_ctrl_c_lets_open_streams_finish(environ: dict[str, str], empty: Path, eventually: Eventually) -> None:
    with running(["--gateways", "2"], environ, empty) as up:
        up.until("ready after")
        assert {line.rsplit(":", 1)[1] for line in up.shown if line.startswith("up") and " at http" in line} == {
            str(up.port),
            str(up.port + 1),
        }
        stream = Stream(up, 80)
        family = up.family()
        up.process.send_signal(signal.SIGINT)
        up.until("no new requests are taken; open ones have 30 s")
        text = stream.rest()
        assert '"finish_reason":"length"' in text
        assert text.rstrip().endswith("[DONE]")
        assert up.process.wait(DEADLINE_S) == 130
        eventually(lambda: gone(family))


def test_a_second_ctrl_c_ends_everything_at_once(environ: dict[str, str], empty: Path, eventually: Eventually) -> None:
    with running([], environ, empty) as up:
        stream = Stream(up, 2500)
        family = up.family()
        up.process.send_signal(signal.SIGINT)
        up.until("no new requests are taken")
        started = time.monotonic()
        up.process.send_signal(signal.SIGINT)
        up.until("ending everything at once")
        assert up.process.wait(DEADLINE_S) == 130
        assert time.monotonic() - started < 10
        eventually(lambda: gone(family))
        with suppress(http.client.HTTPException, OSError):
            assert "[DONE]" not in stream.rest()


def test_role_both_answers_and_nothing_outlives_a_killed_up(
    environ: dict[str, str], empty: Path, eventually: Eventually
) -> None:
    with running(["--role", "both"], environ, empty) as up:
        up.until("ready after")
        assert ask(up) == "The capital of Japan is Tokyo."
        family = up.family()
        assert len(family) == 5  # two brokers, the gateway, a worker's two halves
        up.process.kill()
        eventually(lambda: gone(family))


def test_sigterm_during_the_start_ends_everything_with_exit_code_0(
    environ: dict[str, str], empty: Path, eventually: Eventually
) -> None:
    with running([], environ, empty) as up:
        up.until("starting gateway-1")
        family = up.family()
        up.process.terminate()
        assert up.process.wait(DEADLINE_S) == 0
        eventually(lambda: gone(family))


def test_a_taken_port_is_refused_before_anything_starts(environ: dict[str, str], empty: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "kvferry", "up", "--port", str(port)]
        done = subprocess.run(command, env=environ, cwd=empty, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        f"kvferry up: can't listen on 127.0.0.1:{port} (Address already in use); choose another with --port"
    ]


def test_a_worker_that_refuses_its_settings_ends_up_with_its_line(environ: dict[str, str], empty: Path) -> None:
    with running(["--max-model-len", "1000000"], environ, empty) as up:
        assert up.process.wait(DEADLINE_S) == 2
    assert "can't run as configured" in up.shown[-1]


def test_a_damaged_model_is_refused_before_anything_starts(
    environ: dict[str, str], empty: Path, tmp_path: Path
) -> None:
    (tmp_path / "damaged").mkdir()
    command = [sys.executable, "-m", "kvferry", "up", "--port", "0", "--model", str(tmp_path / "damaged")]
    started = time.monotonic()
    done = subprocess.run(command, env=environ, cwd=empty, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"kvferry up: model {tmp_path / 'damaged'}: config.json is missing"]
    assert time.monotonic() - started < 10
