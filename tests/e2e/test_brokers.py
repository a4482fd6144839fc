"""Brokers that fail, and one with a small payload limit: streams go on, with the same text."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from kvferry.brokers import nats_broker, running
from kvferry.secrets_nats import Rights
from tests.e2e.conftest import Up, until
from tests.e2e.test_front_door import cmdline, model_of
from tests.e2e.test_reliability import body_of, stream, undisturbed

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.nats]

PAUSE_S = 7.0
"""A peer of which nothing is heard for 5 s on a bus that works is dead."""
AT_EVENT = 12


@pytest.fixture(scope="module")
def up(model_dir: Path) -> Iterator[Up]:
    """A small stack of its own: its brokers will suffer."""
    up = Up("--kv-cache-memory-bytes", "64MiB").ready()
    yield up
    assert up.end() == 0


def pid_of(up: Up, program: bytes) -> int:
    (pid,) = (pid for pid in up.descendants() if program in cmdline(pid))
    return pid


def text_with(up: Up, fault: Callable[[], None]) -> str:
    """The text of a stream in the middle of which ``fault`` happens."""

    def on_event(num_events: int) -> None:
        if num_events == AT_EVENT:
            fault()

    return stream(up, body_of(up), on_event)


def test_a_stream_survives_a_restart_of_nats(up: Up) -> None:
    right = undisturbed(up, body_of(up))
    victim = pid_of(up, b"nats-server")
    assert text_with(up, lambda: os.kill(victim, signal.SIGKILL)) == right
    assert pid_of(up, b"nats-server") != victim
    up.idle(30)


def test_a_stream_survives_a_pause_of_nats(up: Up) -> None:
    """Seven silent seconds are nobody's death: no worker is judged, and no attempt is tried again."""
    right = undisturbed(up, body_of(up))
    victim = pid_of(up, b"nats-server")
    resumed: list[bool] = []

    def pause() -> None:
        os.kill(victim, signal.SIGSTOP)
        threading.Event().wait(PAUSE_S)
        os.kill(victim, signal.SIGCONT)
        resumed.append(True)

    before = len([line for line in up.lines if "peer_lost" in line])
    assert text_with(up, pause) == right
    assert resumed
    assert len([line for line in up.lines if "peer_lost" in line]) == before
    up.idle(30)


def test_requests_go_on_without_valkey(up: Up) -> None:
    body = body_of(up, num_tokens=24)
    right = undisturbed(up, body)
    victim = pid_of(up, b"valkey-server")
    os.kill(victim, signal.SIGSTOP)
    try:
        assert stream(up, body) == right
        os.kill(victim, signal.SIGKILL)
        assert stream(up, body) == right
    finally:
        until(lambda: victim not in up.descendants(), 10, "the old Valkey is gone")
    until(lambda: any(b"valkey-server" in cmdline(pid) for pid in up.descendants()), 40, "a new Valkey")


@pytest.mark.parametrize("num_tokens", [1000, pytest.param(4000, marks=pytest.mark.long)])
def test_a_long_prompt_passes_a_limit_of_sixty_four_kilobytes(model_dir: Path, tmp_path: Path, num_tokens: int) -> None:
    def small(folder: Path) -> object:
        broker = nats_broker(folder, {"everybody": Rights((">",), (">",))})
        config = folder / "nats.conf"
        config.write_text(config.read_text().replace("max_payload: 1MB", "max_payload: 64KB"))
        return broker

    with running(small, tmp_path) as broker:  # type: ignore[arg-type]
        up = Up("--nats-url", broker.urls["everybody"], "--kv-cache-memory-bytes", "256MiB").ready()
        try:
            text = "The ferry crosses the wide river again. " * (num_tokens // 8)
            body = {"model": model_of(up), "prompt": text, "max_tokens": 5}
            answer = httpx.post(f"{up.base_url}/v1/completions", json=body, timeout=120)
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["prompt_tokens"] >= num_tokens
            assert answer.headers["x-kvferry-path"] == "split"
            up.idle(10)
        finally:
            assert up.end() == 0
