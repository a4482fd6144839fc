"""`kvferry ledger` and `kvferry cancel` on a real bus, with stand-ins for gateways and workers."""

import asyncio
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import pytest

from kvferry.cancel import request_id_of
from kvferry.errors import UsageError
from kvferry.ledger import WorkerLedger, as_json, as_text, ask_worker
from protocol.messages import Cancel, GatewayStatus, Peer, Released, WorkerStatus
from runtime.heartbeat import Heartbeat
from runtime.identity import new_peer
from runtime.nats_bus import connect_bus
from runtime.postbox import Postbox

DEADLINE_S = 30.0
POOL = {"total": 10, "free": 6, "cached": 3, "held": 1, "reserved": 0}
HOLD = {"request_id": "req-1", "attempt": 1, "owner": "gateway-1", "other": "prefill-1", "state": "adopted"}


def worker_status(url: str) -> WorkerStatus:
    values: dict[str, Any] = {each.name: "" if each.type == "str" else 0 for each in fields(WorkerStatus)}
    return WorkerStatus(**{**values, "role": "decode", "state": "ready", "busy": False, "status_url": url})


@contextmanager
def status_port(pool: dict[str, int]) -> Iterator[str]:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"pool": pool, "holds": [{**HOLD, "age_s": 1.5}]}).encode()
            self.send_response(200 if self.path == "/debug/ledger" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class Present:
    """A gateway or worker that beats, and remembers what it was told."""

    def __init__(self, name: str, status: WorkerStatus | GatewayStatus, *, answers: bool = True) -> None:
        self.name = name
        self.status = status
        self.answers = answers
        self.cancels: list[Cancel] = []

    async def beat(self, nats_url: str, stop: asyncio.Event) -> None:
        bus = await connect_bus(nats_url, name=self.name, on_wait=lambda line: None)
        postbox = Postbox(bus, new_peer(self.name))

        def on_cancel(sender: Peer, cancel: Cancel) -> None:
            self.cancels.append(cancel)
            if self.answers and len(self.cancels) > 1:  # the first is lost on the way
                postbox.send(sender, Released(cancel.request_id, cancel.attempt))

        postbox.on(Cancel, on_cancel)
        await postbox.open()
        heartbeat = Heartbeat(postbox, lambda: self.status)
        heartbeat.start()
        await stop.wait()
        await heartbeat.stop()
        postbox.close()
        await bus.close()


def kvferry(
    nats_url: str, environ: dict[str, str], present: list[Present], *argv: str
) -> subprocess.CompletedProcess[str]:
    """Run the command while these are on the bus."""

    async def body() -> subprocess.CompletedProcess[str]:
        stop = asyncio.Event()
        beating = [asyncio.create_task(each.beat(nats_url, stop)) for each in present]
        command = [sys.executable, "-m", "kvferry", *argv]
        run: Callable[[], subprocess.CompletedProcess[str]] = lambda: subprocess.run(  # noqa: E731
            command,
            env={**environ, "KVFERRY_NATS_URL": nats_url},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        done = await asyncio.to_thread(run)
        stop.set()
        await asyncio.gather(*beating)
        return done

    return asyncio.run(body())


@pytest.mark.nats
def test_the_ledger_lists_pools_and_holds_and_is_content_when_the_sums_are_right(
    nats_url: str, environ: dict[str, str]
) -> None:
    with status_port(POOL) as url:
        done = kvferry(nats_url, environ, [Present("decode-1", worker_status(url))], "ledger")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["decode-1", "10", "6", "3", "1", "0", "0"] in lines
    assert ["decode-1", "req-1", "1", "gateway-1", "prefill-1", "adopted", "1.5"] in lines


@pytest.mark.nats
def test_a_wrong_sum_and_a_worker_that_doesnt_answer_are_said_with_exit_code_1(
    nats_url: str, environ: dict[str, str]
) -> None:
    with status_port({**POOL, "free": 5}) as url:
        present = [Present("decode-1", worker_status(url)), Present("decode-2", worker_status("http://127.0.0.1:1"))]
        done = kvferry(nats_url, environ, present, "ledger", "--json")
    assert done.returncode == 1
    wrong, silent = json.loads(done.stdout)["workers"]
    assert wrong["is_right"] is False
    assert wrong["error"] == ""
    assert "doesn't answer" in silent["error"]


@pytest.mark.nats
def test_cancel_is_repeated_to_every_gateway_until_it_has_answered(nats_url: str, environ: dict[str, str]) -> None:
    present = [Present(name, GatewayStatus("http://h", 1)) for name in ("gateway-1", "gateway-2")]
    done = kvferry(nats_url, environ, present, "cancel", "chatcmpl-req-7", "--reason", "too long")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "released: gateway-1 has nothing of req-7 open",
        "released: gateway-2 has nothing of req-7 open",
    ]
    for each in present:
        assert set(each.cancels) == {Cancel("req-7", 0, "too long")}


@pytest.mark.nats
def test_cancel_without_a_gateway_says_so(nats_url: str, environ: dict[str, str]) -> None:
    done = kvferry(nats_url, environ, [], "cancel", "req-7")
    assert done.returncode == 1
    assert done.stderr == "kvferry cancel: no gateway was heard\n"


def test_an_answers_id_names_its_request() -> None:
    assert request_id_of("chatcmpl-req-12ab") == "req-12ab"
    assert request_id_of("req-12ab") == "req-12ab"
    for text in ("", " ", "req-" + "x" * 300):
        with pytest.raises(UsageError):
            request_id_of(text)


def test_a_status_page_that_is_something_else_is_no_answer() -> None:
    with status_port({"total": 1}) as url:
        assert ask_worker("w", url + "/other").error == ""  # the path of the page is fixed
    assert "doesn't answer" in ask_worker("w", "http://127.0.0.1:1").error


def test_ledgers_in_words_have_sums_and_name_what_is_wrong() -> None:
    pool = {"total": 4, "free": 1, "cached": 1, "held": 1, "quarantined": 1, "reserved": 0}
    right = WorkerLedger("a", pool, [])
    wrong = WorkerLedger("b", {**pool, "free": 0}, [])
    text = as_text([right, wrong, WorkerLedger("c", {}, [], "gone")])
    assert right.is_right
    assert not wrong.is_right
    assert "WRONG" in text
    assert "no holds" in text
    assert "c: gone" in text
    assert json.loads(as_json([right, wrong]))["sums"]["total"] == 8


def test_no_worker_at_all_is_said() -> None:
    assert as_text([]) == "no worker was heard\n"
