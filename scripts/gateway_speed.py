"""What a gateway does on one core: `python scripts/gateway_speed.py`.

A real NATS server and the real gateway, pinned to a core of its own with all its processes; behind them workers that
compute nothing, before it clients that only count. Prints the median time to the first token of a lone request, and the
gateway's CPU time for a request of 16 tokens and for a streamed token, with what one core could do at that price.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from cpu_time import cpu_s
from gateways import instant_workers
from gateways.readers import Run, ask

from kvferry.brokers import free_port, nats_broker, running
from kvferry.model_store import ensure_model
from kvferry.secrets_nats import Rights

GATEWAY_CORE, OTHERS_CORE = 0, 1
STEP_S = 0.004
PROMPT = list(range(1000, 1032))
START_S = 30.0


@contextlib.contextmanager
def stack(folder: Path, step_s: float, num_workers: int = 1) -> Iterator[tuple[int, int]]:
    """Run all but the clients; gives the gateway's port and process id."""
    os.sched_setaffinity(0, {OTHERS_CORE})
    spawn = multiprocessing.get_context("spawn")
    with running(lambda where: nats_broker(where, {"test": Rights((">",), (">",))}), folder) as broker:
        url = broker.urls["test"]
        here, there = spawn.Pipe()
        workers = spawn.Process(target=instant_workers.main, args=(url, step_s, OTHERS_CORE, there), daemon=True)
        workers.start()
        there.close()  # so that its end is noticed if it fails
        here.recv()
        port = free_port()
        model = ensure_model(None, lambda line: None)
        command = [sys.executable, "-m", "kvferry", "gateway", "--model", str(model), "--port", str(port)]
        command += ["--gateway-workers", str(num_workers), "--log-level", "error"]
        environment = {**os.environ, "KVFERRY_NATS_URL": url}
        gateway = subprocess.Popen(command, env=environment)
        os.sched_setaffinity(gateway.pid, {GATEWAY_CORE})
        try:
            wait_until_ready(port, num_workers)
            yield port, gateway.pid
        finally:
            gateway.terminate()
            gateway.wait()
            workers.kill()


def wait_until_ready(port: int, num_workers: int) -> None:
    """Return when the gateway, all processes of it, sees both workers."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/ready")
            answer = connection.getresponse()
            answer.read()
            if answer.status == http.client.OK and (num_workers == 1 or num_ready(connection) == num_workers):
                return
        time.sleep(0.1)
    raise TimeoutError(f"the gateway isn't ready after {START_S:g} s")


def samples(connection: http.client.HTTPConnection, name: str) -> list[float]:
    """The values of a metric, by its labels' order."""
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    return [float(line.rpartition(" ")[2]) for line in lines if line.partition(" ")[0].partition("{")[0] == name]


def num_ready(connection: http.client.HTTPConnection) -> int:
    """Processes of a gateway of several that can take requests."""
    return int(sum(samples(connection, "kvferry_gateway_workers_ready")))


def measured(port: int, pid: int, num_tokens: int, num_requests: int, concurrency: int) -> tuple[Run, float]:
    """One run, and the gateway's CPU seconds for it."""
    before = cpu_of_all(pid)
    run = ask(port, PROMPT, num_tokens, num_requests, concurrency)
    if run.num_bad:
        raise RuntimeError(f"{run.num_bad} of {run.num_requests} answers aren't what was asked for")
    return run, cpu_of_all(pid) - before


def cpu_of_all(pid: int) -> float:
    """CPU seconds of a process and of those that it has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return cpu_s(pid) + sum(cpu_s(int(child)) for child in children)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is printed (default 3)")
    parser.add_argument("--step-ms", type=float, default=STEP_S * 1000, help="between two tokens of a stream")
    parser.add_argument("--gateway-workers", type=int, default=1, help="processes of the gateway (default 1)")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        stack(Path(folder), options.step_ms / 1000, options.gateway_workers) as (port, pid),
    ):
        measured(port, pid, 16, 200, 32)
        lone = [statistics.median(measured(port, pid, 16, 50, 1)[0].first_s) for _ in range(options.rounds)]
        print(f"lone request: first token after {statistics.median(lone) * 1000:.2f} ms (median of 50)")
        each = " by each process" if options.gateway_workers > 1 else ""
        for name, num_tokens, num_requests, concurrency in (
            (f"requests of 16 tokens, 32 at a time{each}", 16, 600, 32),
            (f"streams of 512 tokens, 32 at a time{each}", 512, 64, 32),
            (f"streams of 512 tokens, 16 at a time{each}", 512, 32, 16),
        ):
            load = num_requests * options.gateway_workers, concurrency * options.gateway_workers
            found = [measured(port, pid, num_tokens, *load) for _ in range(options.rounds)]
            a_request = statistics.median(cpu / run.num_requests for run, cpu in found)
            a_token = statistics.median(cpu / run.num_tokens for run, cpu in found)
            rate = statistics.median(run.num_tokens / run.seconds for run, _ in found)
            print(
                f"{name}: {rate:.0f} tokens/s at {rate / num_tokens:.0f} requests/s; "
                f"CPU {a_request * 1000:.2f} ms a request, {a_token * 1e6:.0f} us a token: "
                f"a core could do {1 / a_request:.0f} requests/s, {1 / a_token:.0f} tokens/s"
            )
        if options.gateway_workers > 1:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            spread = samples(connection, "kvferry_gateway_worker_requests_total")
            print("requests by process:", *(f"{number:.0f}" for number in spread))


if __name__ == "__main__":
    main()
