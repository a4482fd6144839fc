"""A gateway of two processes with a real NATS server: spread and sums, a death, the end. No worker computes."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kvferry.brokers import free_port
from tests.e2e.conftest import START_S, until

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.nats]

ROOT = Path(__file__).parents[2]
INSTANT_WORKERS = """
import multiprocessing, os, sys
sys.path.insert(0, "scripts")
from gateways import instant_workers
ours, theirs = multiprocessing.Pipe()
instant_workers.main(sys.argv[1], 0.004, min(os.sched_getaffinity(0)), theirs)
"""
NUM_CONNECTIONS, NUM_EACH, NUM_TOKENS = 32, 5, 4


class Port:
    """A gateway of two processes, and what it says."""

    def __init__(self, number: int, process: subprocess.Popen[bytes]) -> None:
        self.number, self.process = number, process

    @property
    def workers(self) -> list[int]:
        """Process ids of those that serve."""
        pid = self.process.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.number, timeout=30)

    def metrics(self, name: str) -> dict[str, float]:
        """Values of one metric by labels."""
        connection = self.connect()
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        found = [line.rpartition(" ") for line in lines if line.startswith((name + " ", name + "{"))]
        return {labels.removeprefix(name): float(value) for labels, _, value in found}

    @property
    def num_ready(self) -> float:
        with suppress(OSError, http.client.HTTPException):
            return self.metrics("kvferry_gateway_workers_ready").get("", 0.0)
        return 0.0


def ask(connection: http.client.HTTPConnection, num_tokens: int, *, stream: bool = False) -> http.client.HTTPResponse:
    body = {"prompt": [1000, 1001, 1002], "max_tokens": num_tokens, "ignore_eos": True, "stream": stream}
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    return connection.getresponse()


@contextmanager
def two_processes(nats_url: str, model_dir: Path) -> Iterator[Port]:
    number = free_port()
    flags = ["--model", str(model_dir), "--port", str(number), "--gateway-workers", "2", "--log-level", "warning"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "KVFERRY_NATS_URL": nats_url}
    with (
        subprocess.Popen([sys.executable, "-c", INSTANT_WORKERS, nats_url], cwd=ROOT) as workers,
        subprocess.Popen([sys.executable, "-m", "kvferry", "gateway", *flags], env=environment) as gateway,
    ):
        try:
            port = Port(number, gateway)
            until(lambda: port.num_ready == 2, START_S, "two processes that are ready")
            yield port
        finally:
            gateway.kill()
            workers.kill()


@pytest.fixture(scope="module")
def port(nats_url: str, model_dir: Path) -> Iterator[Port]:
    with two_processes(nats_url, model_dir) as port:
        yield port


def test_requests_of_open_connections_spread_evenly_and_figures_add_up_exactly(port: Port) -> None:
    by_worker, tokens, whole = (
        "kvferry_gateway_worker_requests_total",
        "kvferry_gateway_output_tokens_total",
        "kvferry_gateway_request_seconds_count",
    )
    before = {name: port.metrics(name) for name in (by_worker, tokens, whole)}
    all_open = threading.Barrier(NUM_CONNECTIONS)

    def client(_: int) -> list[int]:
        connection = port.connect()
        connection.connect()
        all_open.wait()
        statuses = []
        for _ in range(NUM_EACH):
            answer = ask(connection, NUM_TOKENS)
            assert json.loads(answer.read())["usage"]["completion_tokens"] == NUM_TOKENS
            statuses.append(answer.status)
        connection.close()
        return statuses

    with ThreadPoolExecutor(NUM_CONNECTIONS) as pool:
        statuses = [each for found in pool.map(client, range(NUM_CONNECTIONS)) for each in found]
    num_requests = NUM_CONNECTIONS * NUM_EACH
    assert statuses == [200] * num_requests
    after = {name: port.metrics(name) for name in before}
    assert after[tokens][""] - before[tokens][""] == num_requests * NUM_TOKENS
    route = '{route="/v1/completions"}'
    assert after[whole][route] - before[whole].get(route, 0.0) == num_requests
    served = [after[by_worker][each] - before[by_worker][each] for each in ('{worker="1"}', '{worker="2"}')]
    assert min(served) >= (NUM_CONNECTIONS // 2 - 1) * NUM_EACH, served


def test_a_killed_process_is_replaced_and_the_port_never_refuses(port: Port) -> None:
    counted = port.metrics("kvferry_gateway_requests_total")
    victim = port.workers[0]
    os.kill(victim, signal.SIGKILL)
    num_lost = 0

    def replaced() -> bool:
        nonlocal num_lost
        connection = port.connect()
        try:
            assert ask(connection, NUM_TOKENS).status == 200
        except ConnectionRefusedError:
            raise
        except (OSError, http.client.HTTPException):  # it was handed to the one that is gone
            num_lost += 1
        finally:
            connection.close()
        return victim not in port.workers and port.num_ready == 2

    until(replaced, START_S, "two processes that are ready again")
    assert num_lost <= 1
    assert port.metrics("kvferry_gateway_worker_restarts_total")[""] == 1
    now = port.metrics("kvferry_gateway_requests_total")
    assert all(now[labels] >= value for labels, value in counted.items())


def test_when_the_supervisor_dies_its_processes_end_with_it(port: Port) -> None:
    workers = port.workers
    port.process.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 10, "the end of all")


def test_told_to_end_it_lets_open_streams_finish_and_says_meanwhile_why_nothing_new_is_taken(
    nats_url: str, model_dir: Path
) -> None:
    with two_processes(nats_url, model_dir) as port:
        connections = [port.connect() for _ in port.workers]
        streams = [ask(each, 250, stream=True) for each in connections]  # a second at the least
        for stream in streams:
            assert stream.readline().startswith(b"data: ")
        port.process.send_signal(signal.SIGTERM)

        def refused() -> bool:
            connection = port.connect()
            answer = ask(connection, NUM_TOKENS)
            code = json.loads(answer.read()).get("error", {}).get("code")
            connection.close()
            return (answer.status, code) == (503, "draining")

        until(refused, 10, "a refusal that says why")
        for stream in streams:
            assert stream.read().endswith(b"data: [DONE]\n\n")
        for each in (*streams, *connections):
            each.close()
        assert port.process.wait(30) == 0
        connection = port.connect()
        with pytest.raises(ConnectionRefusedError):
            connection.connect()
