"""Responses in the background: polled, canceled, forgotten, charged at their end, and none left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.errors import from_code
from gateway.key_ring import KeyRing
from gateway.keys import Key, digest_of
from gateway.limiter import Limiter
from gateway.limits import Limits
from gateway.responses_api import background as module
from gateway.responses_api.shelf import key_of
from gateway.responses_api.store import LEASE_S, MemoryStore
from protocol.errors import Code
from tests.support.http_twin import error_of, run, until
from tests.support.responses_twin import RESPONSES, Call, Desk, checked, text_of
from tests.support.scripted_dispatcher import EOS_ID, ids_of, says


async def begin(call: Call, **fields: Any) -> str:
    """Ask for a response in the background and return its path."""
    told = checked(await call("POST", RESPONSES, json={"input": "hello", "background": True, **fields}))
    assert (told["status"], told["background"], told["output"]) == ("queued", True, [])
    return f"{RESPONSES}/{told['id']}"


def test_it_runs_on_and_can_be_polled() -> None:
    async def work() -> None:
        going = asyncio.Event()
        desk = Desk([*says("Paris", end=EOS_ID)[:1], going, *says("Paris", end=EOS_ID)[1:]])
        async with desk.calls() as call:
            path = await begin(call, metadata={"a": "b"})
            assert checked(await call("GET", path))["status"] == "in_progress"
            refused = await call(
                "POST", RESPONSES, json={"input": "x", "previous_response_id": path.rpartition("/")[2]}
            )
            assert "hasn't ended" in error_of(refused, 400)["message"]
            going.set()
            await desk.done()
            told = checked(await call("GET", path))
            assert (told["status"], text_of(told), told["metadata"]) == ("completed", "Paris", {"a": "b"})
            assert told["usage"]["output_tokens"] == len(ids_of("Paris")) + 1
            assert "ended already" in error_of(await call("POST", f"{path}/cancel"), 400)["message"]

    run(work())


def test_it_can_be_canceled() -> None:
    async def work() -> None:
        desk = Desk([*says("Paris")[:1], asyncio.Event()])
        async with desk.calls() as call:
            path = await begin(call)
            await until(lambda: bool(desk.api.dispatcher.streams))
            told = checked(await call("POST", f"{path}/cancel"))
            assert told["status"] == "cancelled"
            assert desk.api.dispatcher.streams[0].cancelled
            assert checked(await call("POST", f"{path}/cancel")) == told == checked(await call("GET", path))

    run(work())


def test_only_what_runs_in_the_background_can_be_canceled() -> None:
    async def work() -> None:
        desk = Desk([*says("Paris")])
        async with desk.calls() as call:
            told = checked(await call("POST", RESPONSES, json={"input": "hello"}))
            assert "background" in error_of(await call("POST", f"{RESPONSES}/{told['id']}/cancel"), 400)["message"]

    run(work())


@pytest.mark.parametrize("forget", [False, True])
def test_another_gateway_can_cancel_and_forget_it(forget: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)

    async def work() -> None:
        ours = Desk([*says("Paris")[:1], asyncio.Event()])
        other = Desk([], ours.store)
        async with ours.calls() as call, other.calls() as elsewhere:
            path = await begin(call)
            assert checked(await elsewhere("GET", path))["status"] == "in_progress"
            if forget:
                assert (await elsewhere("DELETE", path)).status_code == 200
            else:
                assert checked(await elsewhere("POST", f"{path}/cancel"))["status"] == "cancelled"
            await ours.done()
            assert ours.api.dispatcher.streams[0].cancelled
            if forget:
                error_of(await call("GET", path), 404)
            else:
                assert checked(await call("GET", path))["status"] == "cancelled"

    run(work())


def test_one_whose_lease_ran_out_while_the_store_was_away_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)

    async def work() -> None:
        going = asyncio.Event()
        desk = Desk([*says("Paris")[:1], going, *says("Paris")[1:]])
        async with desk.calls() as call:
            path = await begin(call)
            key = key_of("", path.rpartition("/")[2])
            await until(lambda: bool(desk.api.dispatcher.streams))
            await desk.store.end(key)
            while not await desk.store.is_leased(key):
                await asyncio.sleep(0)
            going.set()
            await desk.done()
            assert text_of(checked(await call("GET", path))) == "Paris"

    run(work())


def test_forgetting_one_ends_it() -> None:
    async def work() -> None:
        desk = Desk([*says("Paris")[:1], asyncio.Event()])
        async with desk.calls() as call:
            path = await begin(call)
            assert (await call("DELETE", path)).json()["deleted"] is True
            assert not desk.background.num_running
            error_of(await call("GET", path), 404)

    run(work())


def test_one_that_fails_says_so() -> None:
    async def work() -> None:
        for script in ([from_code(Code.WORKER_LOST, "gone")], [*says("Paris")[:1], RuntimeError("bug")]):
            desk = Desk(list(script))
            async with desk.calls() as call:
                path = await begin(call)
                await desk.done()
                told = checked(await call("GET", path))
                assert (told["status"], told["error"]["code"]) == ("failed", "server_error")
                assert "bug" not in told["error"]["message"]

    run(work())


def test_one_whose_gateway_has_gone_has_failed() -> None:
    async def work() -> None:
        now = [0.0]
        desk = Desk([*says("Paris")[:1], asyncio.Event()], MemoryStore(clock=lambda: now[0]))
        async with desk.calls() as call:
            path = await begin(call)
            now[0] += LEASE_S + 1
            told = checked(await call("GET", path))
            assert (told["status"], told["error"]["message"]) == (
                "failed",
                "The gateway that ran it has gone; ask again",
            )

    run(work())


def test_those_that_run_when_the_gateway_ends_have_failed() -> None:
    async def work() -> None:
        desk = Desk([*says("Paris")[:1], asyncio.Event()])
        async with desk.calls() as call:
            path = await begin(call)
            await desk.background.close()
            told = checked(await call("GET", path))
            assert (told["status"], told["error"]["message"]) == (
                "failed",
                "The gateway that ran it has ended; ask again",
            )
            assert error_of(await call("POST", RESPONSES, json={"input": "x", "background": True}), 429)

    run(work())


def test_so_many_run_at_once_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RUNNING", 2)

    async def work() -> None:
        desk = Desk([asyncio.Event()])
        async with desk.calls() as call:
            paths = [await begin(call) for _ in range(2)]
            refused = await call("POST", RESPONSES, json={"input": "x", "background": True})
            assert error_of(refused, 429)["code"] == "queue_full"
            await call("POST", f"{paths[0]}/cancel")
            await begin(call)

    run(work())


def test_a_limited_key_has_its_slot_and_tokens_charged_at_the_end() -> None:
    key = Key("alice", digest_of(b"one"), Limits(tokens_per_minute=600, concurrency=1))

    async def work() -> None:
        ring, limiter, going = KeyRing(["one"]), Limiter(), asyncio.Event()
        ring._keys = {key.digest: key}
        desk = Desk([*says("Paris")[:1], going, *says("Paris")[1:]], keys=ring, limiter=limiter)
        async with desk.calls("one") as call:
            path = await begin(call)
            refused = await call("POST", RESPONSES, json={"input": "hello"})
            assert error_of(refused, 429)["code"] == "rate_limit_exceeded"
            assert checked(await call("GET", path))["status"] == "in_progress"
            going.set()
            await desk.done()
            await until(lambda: not limiter._held)
            used = checked(await call("GET", path))["usage"]["total_tokens"]
            body = {"messages": [{"role": "user", "content": "x"}]}
            response = await call("POST", "/v1/messages/count_tokens", json=body)
            left = int(response.headers["x-ratelimit-remaining-tokens"])
            assert 600 - used <= left < 600  # ten a second grow back

    run(work())


def test_it_is_counted_once() -> None:
    async def work() -> None:
        desk = Desk([*says("Paris", end=EOS_ID)])
        async with desk.calls() as call:
            await begin(call)
            await desk.done()
            told = desk.api.get_metrics()
            assert f"kvferry_gateway_output_tokens_total {float(len(ids_of('Paris')) + 1)}" in told
            assert 'kvferry_gateway_requests_total{route="background",status="200"} 1.0' in told
            assert "kvferry_gateway_requests_running 0.0" in told

    run(work())
