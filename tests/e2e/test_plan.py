"""`kvferry plan` foretells what a started stack then measures: weights, blocks, bytes of a hand-over."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Up

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.nats]

WITHIN = 0.03
WORDS = "The ferry crosses the wide river every hour. "
FIXED = ("--kv-cache-memory-bytes", "64MiB", "--max-model-len", "auto", "--auto-concurrency", "2")
SHARE = ("--gpu-memory-utilization", "0.15", "--max-num-seqs", "8")


def plan(*flags: str) -> str:
    command = [sys.executable, "-m", "kvferry", "plan", *flags]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module", params=[FIXED, SHARE], ids=["pool given", "pool a share of memory"])
def told(request: pytest.FixtureRequest, model_dir: Path) -> Iterator[tuple[Up, tuple[str, ...]]]:
    """A stack of one prefill and one decode worker, and the flags that it was started with."""
    up = Up(*request.param).ready()
    yield up, request.param
    assert up.end() == 0


def close(measured: float, foretold: float) -> bool:
    return abs(measured - foretold) <= WITHIN * measured


def loaded(up: Up, worker: str) -> dict[str, int]:
    """The figures of a worker's line `weights_loaded`."""
    line = next(line for line in up.lines if line.startswith(worker) and "weights_loaded" in line)
    return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", line)}


def test_weights_blocks_and_the_line_at_start_are_as_foretold(told: tuple[Up, tuple[str, ...]]) -> None:
    up, flags = told
    found: dict[str, Any] = json.loads(plan(*flags, "--json"))["worker"]
    line = plan(*flags).split("will say at its start:\n")[1].splitlines()[0]
    for worker in ("prefill-1", "decode-1"):
        measured = loaded(up, worker)
        assert close(measured["weight_bytes"], found["weight_bytes"])
        assert close(measured["token_bytes"], found["kv_token_bytes"])
        assert close(up.ledger(worker)["pool"]["total"], found["num_blocks"])
        assert any(said.startswith(worker) and line in said for said in up.lines)


def test_a_handover_ships_the_bytes_that_were_foretold(told: tuple[Up, tuple[str, ...]]) -> None:
    up, flags = told
    up.idle(10)
    before = {worker: up.metric(worker, "content_bytes_moved") for worker in ("prefill-1", "decode-1")}
    body = {"prompt": WORDS * 40, "max_tokens": 4, "cache_salt": "plan", "ignore_eos": True}
    answer = httpx.post(f"{up.base_url}/v1/completions", json=body, timeout=60)
    assert answer.headers["x-kvferry-path"] == "split"
    prompt_len = answer.json()["usage"]["prompt_tokens"]
    up.idle(10)
    (foretold,) = json.loads(plan(*flags, "--prompt-len", str(prompt_len), "--json"))["handovers"]
    assert foretold["bytes"] > 0
    for worker, moved in before.items():
        assert close(up.metric(worker, "content_bytes_moved") - moved, foretold["bytes"])


def test_auto_is_what_workers_choose_and_the_gateway_serves(told: tuple[Up, tuple[str, ...]]) -> None:
    """Prompts beyond it get a 400, and as many requests as were stated run at that length at once."""
    up, flags = told
    longest = json.loads(plan(*flags, "--json"))["worker"]["max_model_len"]
    (card,) = httpx.get(f"{up.base_url}/v1/models", timeout=60).json()["data"]
    assert card["max_model_len"] == longest
    if flags is not FIXED:
        return
    assert longest == (182 // 2 - 1) * 16
    body = {"prompt": WORDS * 200, "max_tokens": 4}
    refused = httpx.post(f"{up.base_url}/v1/completions", json=body, timeout=60)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    at_most = {"prompt": [list(range(100, 100 + longest - 4)) for _ in range(2)], "max_tokens": 4, "ignore_eos": True}
    answer = httpx.post(f"{up.base_url}/v1/completions", json=at_most, timeout=120)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["total_tokens"] == 2 * longest
    assert all(up.metric(worker, "num_preemptions") == 0 for worker in up.status_urls())
