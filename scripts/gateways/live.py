"""What stands around a gateway that is measured, and the gateway itself."""

from __future__ import annotations

import contextlib
import http.client
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cpu_time import cpu_s

from gateways import instant_workers
from kvferry.brokers import free_port, nats_broker, running
from kvferry.model_store import ensure_model
from kvferry.secrets_nats import Rights

GATEWAY_CORE, OTHERS_CORE = 0, 1
START_S = 30.0


@contextlib.contextmanager
def surroundings(folder: Path, step_s: float) -> Iterator[str]:
    """Run broker and workers on a core of their own; gives the broker's address."""
    os.sched_setaffinity(0, {OTHERS_CORE})
    spawn = multiprocessing.get_context("spawn")
    with running(lambda where: nats_broker(where, {"test": Rights((">",), (">",))}), folder) as broker:
        url = broker.urls["test"]
        here, there = spawn.Pipe()
        workers = spawn.Process(target=instant_workers.main, args=(url, step_s, OTHERS_CORE, there), daemon=True)
        workers.start()
        there.close()  # so that its end is noticed if it fails
        here.recv()
        try:
            yield url
        finally:
            workers.kill()


@dataclass(frozen=True, slots=True)
class Gateway:
    """One that runs. ``pid`` is the process that was started."""

    port: int
    pid: int
    num_workers: int

    def cpu_s(self) -> float:
        """CPU seconds of all its processes so far."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return cpu_s(self.pid) + sum(cpu_s(int(child)) for child in children)

    def samples(self, name: str) -> list[float]:
        """The values of a metric, by its labels' order."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        return [float(line.rpartition(" ")[2]) for line in lines if line.partition(" ")[0].partition("{")[0] == name]

    def wait_until_ready(self) -> None:
        """Return when all its processes see both workers."""
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/ready")
                if connection.getresponse().status == http.client.OK and self._num_ready() == self.num_workers:
                    return
            time.sleep(0.1)
        raise TimeoutError(f"the gateway isn't ready after {START_S:g} s")

    def _num_ready(self) -> int:
        return 1 if self.num_workers == 1 else int(sum(self.samples("kvferry_gateway_workers_ready")))


@contextlib.contextmanager
def gateway(url: str, num_workers: int) -> Iterator[Gateway]:
    """Run one, with all its processes on the gateways' core."""
    port = free_port()
    model = ensure_model(None, lambda line: None)
    command = [sys.executable, "-m", "kvferry", "gateway", "--model", str(model), "--port", str(port)]
    command += ["--gateway-workers", str(num_workers), "--gateway-id", f"gateway-{num_workers}", "--log-level", "error"]
    process = subprocess.Popen(command, env={**os.environ, "KVFERRY_NATS_URL": url})
    os.sched_setaffinity(process.pid, {GATEWAY_CORE})
    try:
        made = Gateway(port, process.pid, num_workers)
        made.wait_until_ready()
        yield made
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def neighbor() -> Iterator[None]:
    """Never let the others' core rest, without keeping anybody from it.

    Two cores of a virtual machine may be two threads of one core, now and then or always: then the same work takes
    one of them up to twice the CPU time while the other is busy, and what keeps the other busier looks dearer.
    """
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    os.sched_setaffinity(burner.pid, {OTHERS_CORE})
    os.sched_setscheduler(burner.pid, os.SCHED_IDLE, os.sched_param(0))
    try:
        yield
    finally:
        burner.kill()
        burner.wait()
