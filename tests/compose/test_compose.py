"""The shipped containers, run by a real Docker engine: `make test-compose`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvferry.brokers import free_port

pytestmark = [
    pytest.mark.compose,
    pytest.mark.skipif(shutil.which("docker") is None, reason="needs Docker with its compose plugin"),
]

ROOT = Path(__file__).parents[2]
IMAGES = ("kvferry-gateway", "kvferry-worker")
BUILD_S = 1800.0
COMMAND_S = 300.0
NUM_STREAMS = 4
UNDER_LOAD_S = 10.0
BUILD_TOOLS = ("gcc", "cc", "g++", "clang", "make", "cmake", "ninja", "ld", "as", "git", "curl", "wget")


def docker(*argv: str, within_s: float = COMMAND_S) -> str:
    """What a docker command says on stdout; fails with all it said."""
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, timeout=within_s, check=False)
    assert done.returncode == 0, f"docker {' '.join(argv)}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout


class Deployment:
    """One compose project of its own, on a port of its own."""

    def __init__(self) -> None:
        self.port = free_port()
        self.project = f"kvferry-test-{os.getpid()}"
        self.base_url = f"http://127.0.0.1:{self.port}"
        os.environ |= {"PORT": str(self.port), "KV_CACHE": "256MiB"}

    def compose(self, *argv: str, within_s: float = COMMAND_S) -> str:
        flags = ("--project-name", self.project, "--project-directory", str(ROOT))
        return docker("compose", *flags, *argv, within_s=within_s)

    def up(self, prefill: int = 1, decode: int = 1) -> float:
        """Seconds until every service is ready."""
        started = time.monotonic()
        self.compose("up", "--detach", "--wait", "--scale", f"prefill={prefill}", "--scale", f"decode={decode}")
        self.until_workers(prefill, decode)
        return time.monotonic() - started

    def until_workers(self, prefill: int, decode: int) -> None:
        end = time.monotonic() + COMMAND_S
        while self.workers() != (prefill, decode):
            assert time.monotonic() < end, f"{self.workers()} are not {prefill} and {decode}"
            threading.Event().wait(0.2)

    def workers(self) -> tuple[int, int]:
        health = httpx.get(f"{self.base_url}/health", timeout=10).json()
        return health["prefill_workers"], health["decode_workers"]

    def containers(self, service: str) -> list[str]:
        return self.compose("ps", "--quiet", service).split()

    def logs(self, service: str) -> str:
        return self.compose("logs", "--no-log-prefix", service)


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    """Built and started from the repository as it is; removed with all its volumes."""
    made = Deployment()
    made.compose("build", within_s=BUILD_S)
    try:
        made.up()
        yield made
    finally:
        made.compose("down", "--volumes", "--timeout", "60")


def ask(url: str, number: int = 0, num_tokens: int = 24) -> str:
    """The text of one streamed completion; fails on anything but a whole one."""
    body = {
        "model": "SmolLM2-135M-Instruct",
        "prompt": f"{number}. The ferry crosses the river, and the old man at the wheel",
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    text, last = "", ""
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                text += event["choices"][0]["text"]
            last = line or last
    assert last == "data: [DONE]"
    return text


def under_load(url: str, change: Callable[[], Any]) -> int:
    """Streams go on while something changes and some time after; each text stays what it was. How many there were."""
    right = [ask(url, number) for number in range(NUM_STREAMS)]
    stop = threading.Event()

    def work(number: int) -> int:
        num_done = 0
        while not stop.is_set():
            assert ask(url, number) == right[number]
            num_done += 1
        return num_done

    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        working = [pool.submit(work, number) for number in range(NUM_STREAMS)]
        try:
            change()
            stop.wait(UNDER_LOAD_S)
        finally:
            stop.set()
        return sum(each.result() for each in working)


def test_a_client_gets_an_answer_on_the_split_path(deployment: Deployment) -> None:
    body = {
        "model": "SmolLM2-135M-Instruct",
        "messages": [{"role": "user", "content": "What is the capital of Japan?"}],
        "max_tokens": 12,
        "temperature": 0,
    }
    answer = httpx.post(f"{deployment.base_url}/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    assert "Tokyo" in answer.json()["choices"][0]["message"]["content"]
    assert answer.headers["x-kvferry-path"] == "split"


def test_pools_are_scaled_apart_under_load_with_no_failure(deployment: Deployment) -> None:
    def change() -> None:
        deployment.up(3, 2)
        deployment.up(1, 1)

    assert under_load(deployment.base_url, change) > NUM_STREAMS


@pytest.mark.parametrize("service", ["decode", "prefill"])
def test_a_container_killed_under_load_costs_no_request(deployment: Deployment, service: str) -> None:
    deployment.up(2, 2)

    def change() -> None:
        docker("kill", deployment.containers(service)[0])

    assert under_load(deployment.base_url, change) > NUM_STREAMS
    deployment.up(2, 2)
    deployment.up(1, 1)


@pytest.mark.parametrize("service", ["nats", "redis"])
def test_a_broker_killed_under_load_costs_no_request(deployment: Deployment, service: str) -> None:
    def change() -> None:
        docker("kill", deployment.containers(service)[0])
        deployment.compose("up", "--detach", service)

    assert under_load(deployment.base_url, change) > NUM_STREAMS


def test_the_ledger_of_the_deployment_is_right(deployment: Deployment) -> None:
    found = json.loads(deployment.compose("run", "--rm", "operator", "ledger", "--json"))
    assert len(found["workers"]) == 2
    assert all(worker["is_right"] for worker in found["workers"])


def test_a_new_deployment_finds_the_model_and_the_secrets(deployment: Deployment) -> None:
    assert "converting" in deployment.logs("model")
    text = ask(deployment.base_url)
    deployment.compose("down", "--timeout", "60")
    deployment.up()
    assert "converting" not in deployment.logs("model")
    assert ask(deployment.base_url) == text


def test_every_service_runs_as_a_user_on_a_read_only_root_without_capabilities(deployment: Deployment) -> None:
    for container in deployment.compose("ps", "--all", "--quiet").split():
        (found,) = json.loads(docker("inspect", container))
        host = found["HostConfig"]
        assert found["Config"]["User"] == "10001:10001", found["Name"]
        assert host["ReadonlyRootfs"], found["Name"]
        assert host["CapDrop"] == ["ALL"], found["Name"]
        assert "no-new-privileges:true" in host["SecurityOpt"], found["Name"]
        assert not host["Privileged"]


def test_no_secret_is_seen_from_outside_or_by_another_role(deployment: Deployment) -> None:
    """Neither in an image, nor in what `docker inspect` shows, nor in logs; each role reads its own file alone."""
    url = deployment.compose("exec", "-T", "gateway", "cat", "/access/nats-url").strip()
    match = re.search(r":([^:@/]{20,})@", url)
    assert match
    secret = match[1]
    for container in deployment.compose("ps", "--all", "--quiet").split():
        assert secret not in docker("inspect", container)
        logs = subprocess.run(["docker", "logs", container], capture_output=True, text=True, check=True)
        assert secret not in logs.stdout + logs.stderr
    for image in IMAGES:
        assert secret not in docker("history", "--no-trunc", image)
    for service in ("prefill", "decode"):
        other = deployment.compose("exec", "-T", service, "sh", "-c", "cat /access/*")
        assert secret not in other


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_has_no_build_tool_no_secret_and_no_sources(image: str) -> None:
    (found,) = json.loads(docker("inspect", image))
    assert found["Config"]["User"] == "10001:10001"
    tools = " ".join(BUILD_TOOLS)
    left = "find /access /keys /models /secrets -type f; find /ours -name '*.c' -o -name '*.h'"
    script = f"for tool in {tools}; do command -v $tool; done; {left}"
    assert docker("run", "--rm", "--entrypoint", "sh", image, "-c", script) == ""
    assert not [variable for variable in found["Config"]["Env"] if re.search("KEY|TOKEN|PASSWORD|SECRET", variable)]


def test_a_key_with_a_limit_opens_the_gateway_and_nothing_else_does(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = deployment.compose("run", "--rm", "key", "new", "alice", "--file", "/keys/keys", "--concurrency", "2")
    key = made.split()[0]
    monkeypatch.setenv("KEYS_FILE", "/keys/keys")
    deployment.up()
    url = f"{deployment.base_url}/v1/models"
    assert httpx.get(url, timeout=30).status_code == 401
    assert httpx.get(url, headers={"Authorization": f"Bearer {key}"}, timeout=30).status_code == 200


def test_the_gateways_image_has_no_gpu_stack() -> None:
    script = "import importlib.util as u; print([m for m in ('torch', 'triton') if u.find_spec(m)])"
    said = docker("run", "--rm", "--entrypoint", "python", "kvferry-gateway", "-c", script)
    assert "torch" not in said
    assert "triton" not in said
