"""Workers come, go and die under a real stack: nothing is lost, and the text stays the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Up, until

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.nats]

PROMPT = "Once upon a time a ferry crossed the river every morning, and every morning the same old man"
NUM_TOKENS = 90
READY_S = 90.0


def body_of(up: Up, number: int = 0, num_tokens: int = NUM_TOKENS) -> dict[str, Any]:
    model = json.loads(up.curl[-1])["model"]
    prompt = f"{number}. {PROMPT}" if number else PROMPT
    return {"model": model, "prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}


def stream(up: Up, body: dict[str, Any], on_event: Callable[[int], None] = lambda num_events: None) -> str:
    """The whole text; ``on_event`` is called with the number of events so far."""
    text = ""
    num_events = 0
    with httpx.stream("POST", f"{up.base_url}/v1/completions", json={**body, "stream": True}, timeout=120) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                text += "".join(choice["text"] for choice in event["choices"])
                num_events += 1
                on_event(num_events)
    assert line == "data: [DONE]" or not line
    return text


def undisturbed(up: Up, body: dict[str, Any]) -> str:
    """What `stream` gives where nothing happens, asked for once a stack."""
    key = json.dumps(body)
    if key not in up.texts:
        up.texts[key] = stream(up, body)
    return up.texts[key]


def kvferry(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvferry", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def ledger(up: Up) -> dict[str, Any]:
    done = kvferry("ledger", "--json", "--stack", str(up.port))
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    return found


def leaves_nothing(up: Up) -> None:
    def nothing() -> bool:
        found = ledger(up)
        left = [worker["holds"] for worker in found["workers"] if worker["holds"]]
        return not left and not found["sums"]["held"] and not found["sums"]["reserved"]

    until(nothing, 30, "nothing held")


def until_workers(up: Up, prefill: int, decode: int) -> None:
    def there() -> bool:
        health = httpx.get(f"{up.base_url}/health", timeout=10).json()
        return (health["prefill_workers"], health["decode_workers"]) == (prefill, decode)

    until(there, READY_S, f"{prefill} prefill and {decode} decode workers")


def io_process(up: Up, worker: str) -> int:
    """The worker's process that `up` started; its child is the engine."""
    children = [int(pid) for pid in Path(f"/proc/{up.process.pid}/task/{up.process.pid}/children").read_text().split()]
    (found,) = [pid for pid in children if worker.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
    return found


def adopter(up: Up) -> str:
    """The decode worker that has adopted a request now; "" if none has."""
    for worker in up.status_urls():
        with suppress(OSError):  # it has left
            if any(hold["state"] == "adopted" for hold in up.ledger(worker)["holds"]):
                return worker
    return ""


def test_the_ledger_of_a_live_stack_names_each_hold(pair: Up) -> None:
    body = {**body_of(pair, num_tokens=1500), "stream": True}
    with httpx.stream("POST", f"{pair.base_url}/v1/completions", json=body, timeout=120) as answer:
        events = (line for line in answer.iter_lines() if line.startswith("data: {"))
        for _ in range(5):
            next(events)
        shown = kvferry("ledger", "--stack", str(pair.port)).stdout
    assert "adopted" in shown
    assert "gateway-1" in shown
    assert "prefill-1" in shown
    leaves_nothing(pair)


def test_an_operators_cancel_ends_a_stream_with_an_error_and_frees_everything(pair: Up) -> None:
    url = f"http://127.0.0.1:{pair.port + 1}/v1/completions"
    events: list[dict[str, Any]] = []
    body = {**body_of(pair, num_tokens=1500), "stream": True}
    with httpx.stream("POST", url, json=body, timeout=120) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                events.append(json.loads(line.removeprefix("data: ")))
                if len(events) == 3:
                    done = kvferry("cancel", events[0]["id"], "--stack", str(pair.port))
                    assert done.returncode == 0, done.stderr
                    assert "released: gateway-1" in done.stdout
                    assert "released: gateway-2" in done.stdout
    assert events[-1]["error"]["code"] == "cancelled"
    leaves_nothing(pair)


def test_a_decode_worker_sent_away_mid_stream_loses_nothing_and_comes_back(pair: Up) -> None:
    until_workers(pair, 1, 2)
    right = undisturbed(pair, body_of(pair))
    num_lines = len(pair.lines)

    def send_away(seen: int) -> None:
        if seen == 10:
            victim = until(lambda: adopter(pair), 10, "adopted")
            os.kill(io_process(pair, victim), signal.SIGTERM)

    assert stream(pair, body_of(pair), send_away) == right
    again = "ended unasked with exit code 0; it is started again at once"
    until(lambda: any(again in line for line in pair.lines[num_lines:]), 60, "it left in order")
    until_workers(pair, 1, 2)
    leaves_nothing(pair)


def under_load(up: Up, num_streams: int, change: Callable[[], None]) -> int:
    """Streams that go on one after the other while something changes; each text must stay what it was."""
    right = [undisturbed(up, body_of(up, number + 1, 40)) for number in range(num_streams)]
    stop = threading.Event()

    def work(number: int) -> int:
        num_done = 0
        while not stop.is_set():
            assert stream(up, body_of(up, number + 1, 40)) == right[number]
            num_done += 1
        return num_done

    with ThreadPoolExecutor(num_streams) as pool:
        working = [pool.submit(work, number) for number in range(num_streams)]
        try:
            change()
        finally:
            stop.set()
        return sum(each.result() for each in working)


def test_scaling_up_and_down_under_load_fails_nothing(pair: Up) -> None:
    until_workers(pair, 1, 2)

    def change() -> None:
        for prefill, decode in ((2, 3), (1, 2)):
            argv = ("--prefill", str(prefill), "--decode", str(decode), "--stack", str(pair.port))
            done = kvferry("scale", *argv)
            assert done.returncode == 0, done.stderr
            assert done.stdout.startswith(f"{prefill} prefill, {decode} decode: ")
            until_workers(pair, prefill, decode)

    assert under_load(pair, 4, change) > 4
    leaves_nothing(pair)


@pytest.mark.long
def test_a_rolling_restart_under_load_fails_nothing(pair: Up) -> None:
    until_workers(pair, 1, 2)

    def change() -> None:
        before = set(pair.status_urls().values())
        done = kvferry("restart", "--stack", str(pair.port))
        assert done.returncode == 0, done.stderr
        workers = done.stdout.split(": ")[1].strip().split(", ")
        assert not {pair.status_urls()[worker] for worker in workers} & before

    assert under_load(pair, 4, change) > 4
    leaves_nothing(pair)


def test_engines_spin_for_a_bounded_time_on_their_share_of_the_cores(pair: Up) -> None:
    """Two threads of two workers that spin on two cores slow each other up to a hundredfold."""
    engines = []
    for pid in pair.descendants():
        if b"--fd" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            pairs = [each.split(b"=", 1) for each in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if each]
            engines.append(dict(pairs))
    assert len(engines) == 3
    share = max(1, len(os.sched_getaffinity(0)) // 3)
    for environment in engines:
        assert environment[b"GOMP_SPINCOUNT"] == b"3000"
        assert environment[b"OMP_NUM_THREADS"] == str(share).encode()
