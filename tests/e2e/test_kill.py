"""Real workers die by `kill -9`, at chosen tokens of a stream and in each state of a hand-over: no token changes."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.conftest import Up, until
from tests.e2e.test_front_door import cmdline
from tests.e2e.test_reliability import adopter, body_of, io_process, stream, undisturbed, until_workers

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.nats]

LONG_PROMPT = "The ferry crosses the wide river again. " * 120
"""About a second of prefill, and more pieces than a moment takes."""


def states(up: Up, role: str) -> dict[str, str]:
    """The state of each hold on the workers of one role, by worker."""
    workers = [worker for worker in up.status_urls() if worker.startswith(role)]
    return {worker: hold["state"] for worker in workers for hold in up.ledger(worker)["holds"]}


def engine_process(up: Up, worker: str) -> int:
    """The engine that the worker's own process has started."""
    io = io_process(up, worker)
    children = Path(f"/proc/{io}/task/{io}/children").read_text().split()
    (found,) = (int(pid) for pid in children if b"--fd" in cmdline(int(pid)))
    return found


LONG = [pytest.param(number, marks=pytest.mark.long) for number in (2, 15, 17, 40)]
"""`make test` has these in process (tests/parity/test_kill.py)."""


@pytest.mark.parametrize("num_events", [1, 16, *LONG])
def test_a_decode_worker_killed_mid_stream_changes_no_token(pair: Up, num_events: int) -> None:
    until_workers(pair, 1, 2)
    right = undisturbed(pair, body_of(pair))

    def kill(seen: int) -> None:
        if seen == num_events:
            victim = until(lambda: adopter(pair), 10, "adopted")
            os.kill(io_process(pair, victim), signal.SIGKILL)

    assert stream(pair, body_of(pair), kill) == right
    until_workers(pair, 1, 2)
    pair.idle(30)


def test_a_decode_worker_killed_before_the_first_token_changes_no_token(pair: Up) -> None:
    until_workers(pair, 1, 2)
    body = {**body_of(pair), "prompt": LONG_PROMPT}
    seen: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(stream, pair, body, seen.append)
        (victim,) = until(lambda: states(pair, "decode"), 10, "reserved")
        os.kill(io_process(pair, victim), signal.SIGKILL)
        assert not seen
        text = asked.result()
    until_workers(pair, 1, 2)
    assert text == stream(pair, body)
    pair.idle(30)


@pytest.mark.parametrize("state", ["offered", "granted", "sending", "complete"])
def test_a_prefill_worker_killed_in_each_state_changes_no_token(pair: Up, state: str) -> None:
    """What would end a state is stopped: the decode workers, that answer an offer and confirm a transfer.

    A real P that was granted a reservation is ``sending`` at once: ``granted`` is seen on D, until a first piece comes.
    """
    until_workers(pair, 1, 2)
    (victim,) = (worker for worker in pair.status_urls() if worker.startswith("prefill"))
    prompt = LONG_PROMPT[: 320 if state == "complete" else None]  # 320: all of it fits the credit of a grant
    body = {**body_of(pair, num_tokens=30), "prompt": f"{state}. {prompt}"}
    decoders = Stopped(*(io_process(pair, worker) for worker in ("decode-1", "decode-2")))
    engine = Stopped(engine_process(pair, victim))
    with ThreadPoolExecutor(1) as pool:
        try:
            if state in ("offered", "complete"):
                decoders.stop()
            if state == "complete":
                engine.stop()
            asked = pool.submit(stream, pair, body)
            if state == "complete":
                until_sent(pair, victim, decoders, engine)
            elif state == "granted":
                until(lambda: "granted" in states(pair, "decode").values(), 4, state)
            else:
                until(lambda: states(pair, "prefill").get(victim) == state, 4, state)
            os.kill(io_process(pair, victim), signal.SIGKILL)
        finally:
            decoders.go_on()
            engine.go_on()
        text = asked.result()
    until_workers(pair, 1, 2)
    assert text == stream(pair, body)
    pair.idle(30)


def until_sent(up: Up, victim: str, decoders: Stopped, engine: Stopped) -> None:
    """All pieces have left the prefill worker, and the decode workers, stopped, have confirmed none.

    All of them and the worker's engine are stopped before, or it might have computed all and send as soon as it may.
    """
    until(lambda: states(up, "prefill").get(victim) == "offered", 4, "offered")
    decoders.go_on()
    until(lambda: "granted" in states(up, "decode").values(), 4, "granted")
    decoders.stop()
    engine.go_on()
    until(lambda: states(up, "prefill").get(victim) == "complete", 4, "complete")


class Stopped:
    """Processes that can be stopped, and go on at the end whatever happens."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids

    def stop(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        for pid in self._pids:
            with suppress(ProcessLookupError):  # the engine of a worker that was killed
                os.kill(pid, signal.SIGCONT)
