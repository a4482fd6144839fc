"""Streams of responses in the background: left, taken up again, here or at another gateway, and bounded."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from gateway.errors import from_code
from gateway.http_settings import HttpSettings
from gateway.responses_api import background as background_module
from gateway.responses_api import event_log, replay
from gateway.responses_api.event_log import AFTER, CUT, END, EventLog, part_key
from gateway.responses_api.shelf import key_of
from gateway.responses_api.store import LEASE_S, MemoryStore, StoreAway
from protocol.errors import Code
from tests.support.http_twin import error_of, post_raw, run, serving, until
from tests.support.responses_twin import RESPONSES, Call, Desk, checked, events_in, text_of
from tests.support.scripted_dispatcher import EOS_ID, says

ASKED = {"input": "hello", "background": True, "stream": True}


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_module, "LOOK_S", 0.01)
    monkeypatch.setattr(replay, "LOOK_S", 0.01)


async def streamed(call: Call, **fields: Any) -> list[dict[str, Any]]:
    """All events of a response in the background, as who asked for it gets them."""
    return events_in(await call("POST", RESPONSES, json={**ASKED, **fields}))


async def again(call: Call, path: str, after: int | None = None) -> list[dict[str, Any]]:
    query = {"stream": "true"} if after is None else {"stream": "true", "starting_after": after}
    return events_in(await call("GET", path, params=query), 0 if after is None else after + 1)


def path_of(events: list[dict[str, Any]]) -> str:
    return f"{RESPONSES}/{events[0]['response']['id']}"


async def begun(port: int) -> tuple[str, asyncio.StreamWriter]:
    """Ask, read the first event, and return the response's path."""
    reader, writer = await post_raw(port, RESPONSES, ASKED)
    data = (await reader.readuntil(b"\n\n") + await reader.readuntil(b"\n\n")).partition(b"data: ")[2]
    told, _ = json.JSONDecoder().raw_decode(data.decode())
    return path_of([told]), writer


def test_its_events_are_those_of_any_stream_and_can_be_had_again() -> None:
    async def work() -> None:
        desk = Desk(says("Paris is big", end=EOS_ID))
        async with desk.calls() as call:
            events = await streamed(call)
            plain = events_in(await call("POST", RESPONSES, json={"input": "hello", "stream": True}))
            assert [each["type"] for each in events] == [each["type"] for each in plain]
            await desk.done()
            path = path_of(events)
            assert await again(call, path) == events
            for after in (0, 3, len(events) - 2, len(events) - 1):
                assert await again(call, path, after) == events[after + 1 :]
            last = events[-1]["response"]
            assert checked(await call("GET", path)) == last
            assert (last["status"], last["background"], text_of(last)) == ("completed", True, "Paris is big")

    run(work())


def test_a_client_that_leaves_takes_it_up_again_at_another_gateway_while_it_runs() -> None:
    async def work() -> None:
        going = asyncio.Event()
        script = says("Paris is big", end=EOS_ID)
        ours = Desk([*script[:2], going, *script[2:]])
        other = Desk([], ours.store)
        async with ours.calls() as call, other.calls() as elsewhere, serving(ours.api.app) as port:
            path, writer = await begun(port)
            writer.close()
            reading = asyncio.ensure_future(again(elsewhere, path, 1))
            await until(lambda: bool(ours.api.dispatcher.streams))
            going.set()
            await ours.done()
            assert not ours.api.dispatcher.streams[0].cancelled
            events = await again(call, path)
            assert await reading == events[2:]
            assert text_of(events[-1]["response"]) == "Paris is big"

    run(work())


def test_one_that_is_canceled_ends_its_streams() -> None:
    async def work() -> None:
        desk = Desk([*says("Paris")[:1], asyncio.Event()])
        other = Desk([], desk.store)
        async with desk.calls() as call, other.calls() as elsewhere:
            streaming = asyncio.ensure_future(streamed(call))
            await until(lambda: bool(desk.api.dispatcher.streams and desk.api.dispatcher.streams[0].num_given))
            [(errand, _)] = desk.background._running.values()
            path = f"{RESPONSES}/{errand.head.id}"
            assert checked(await elsewhere("POST", f"{path}/cancel"))["status"] == "cancelled"
            told = await again(elsewhere, path)
            events = await streaming
            assert events[: len(told)] == told
            assert events[-1]["type"] != "error"
            assert await again(call, path) == events

    run(work())


def test_one_that_fails_says_so_in_its_streams() -> None:
    async def work() -> None:
        for script in ([from_code(Code.WORKER_LOST, "gone")], [*says("Paris")[:1], RuntimeError("bug")]):
            desk = Desk(list(script))
            async with desk.calls() as call:
                events = await streamed(call)
                assert events[0]["type"] == "response.created"
                assert (events[-1]["type"], events[-1]["response"]["error"]["code"]) == (
                    "response.failed",
                    "server_error",
                )
                await desk.done()
                assert await again(call, path_of(events)) == events

    run(work())


def test_one_whose_gateway_has_gone_has_no_more_events() -> None:
    async def work() -> None:
        now = [0.0]
        desk = Desk([*says("Paris")[:1], asyncio.Event()], MemoryStore(clock=lambda: now[0]))
        other = Desk([], desk.store)
        async with desk.calls(), other.calls() as elsewhere, serving(desk.api.app) as port:
            path, writer = await begun(port)
            now[0] += LEASE_S + 1
            [*_, last] = await again(elsewhere, path)
            assert (last["type"], last["code"]) == ("error", "server_error")
            writer.close()

    run(work())


def test_forgetting_one_forgets_its_events() -> None:
    async def work() -> None:
        desk = Desk(says("Paris", end=EOS_ID))
        async with desk.calls() as call:
            path = path_of(await streamed(call))
            await desk.done()
            assert (await call("DELETE", path)).status_code == 200
            assert not desk.store.num_bytes
            error_of(await call("GET", path, params={"stream": "true"}), 404)
        running = Desk([*says("Paris")[:1], asyncio.Event()])
        async with running.calls() as call, serving(running.api.app) as port:
            path, writer = await begun(port)
            await until(lambda: f"{path.rpartition('/')[2]}:events" in str(list(running.store._entries)))
            await call("DELETE", path)
            await running.done()
            assert not running.store.num_bytes
            writer.close()

    run(work())


def test_only_a_stream_can_be_had_again_and_only_by_its_owner() -> None:
    async def work() -> None:
        desk = Desk(says("Paris"), settings=HttpSettings(api_keys=("one", "two")))
        async with desk.calls("one") as call, desk.calls("two") as others:
            path = path_of(await streamed(call))
            await desk.done()
            error_of(await others("GET", path, params={"stream": "true"}), 404)
            for wrong in ("-2", "x", "1.5", "9" * 10, ""):
                refused = await call("GET", path, params={"stream": "true", "starting_after": wrong})
                assert error_of(refused, 400)["param"] == "starting_after"
            assert error_of(await call("GET", path, params={"stream": "maybe"}), 400)["param"] == "stream"
            whole = checked(await call("POST", RESPONSES, json={"input": "hello", "background": True}))
            await desk.done()
            refused = await call("GET", f"{RESPONSES}/{whole['id']}", params={"stream": "true"})
            assert error_of(refused, 400)["param"] == "stream"

    run(work())


def test_so_many_events_are_kept_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MAX_KEPT_BYTES", 2500)

    async def work() -> None:
        desk = Desk(says("Paris is big", end=EOS_ID))
        async with desk.calls() as call:
            events = await streamed(call)
            await desk.done()
            *told, last = await again(call, path_of(events))
            assert 0 < len(told) < len(events)
            assert told == events[: len(told)]
            assert last["type"] == "error"
            assert checked(await call("GET", path_of(events))) == events[-1]["response"]

    run(work())


def test_where_a_part_was_lost_no_half_event_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MAX_ENTRY_BYTES", 300)

    async def work() -> None:
        desk = Desk(says("Paris is big", end=EOS_ID))
        async with desk.calls() as call:
            events = await streamed(call)
            await desk.done()
            key = key_of("", events[0]["response"]["id"])
            assert await desk.store.drop(part_key(key, 10))
            *told, last = await again(call, path_of(events))
            assert told == events[: len(told)]
            assert (last["type"], last["sequence_number"]) == ("error", len(told))

    run(work())


def test_a_reader_that_lags_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MAX_UNREAD_BYTES", 100)

    async def work() -> None:
        store = MemoryStore()
        log = EventLog(store, "k")
        live = log.live()
        log.put(b"a" * 50 + AFTER)
        assert await anext(live) == b"a" * 50 + AFTER
        for _ in range(10):
            log.put(b"b" * 50 + AFTER)
        with pytest.raises(StopAsyncIteration):
            await anext(live)
        assert not log._unread
        log.end()
        await log.flush()
        kept = await store.get(part_key("k", 0))
        assert kept is not None
        assert kept.count(AFTER) == 12
        assert kept.endswith(END + AFTER)

    run(work())


def test_what_could_not_be_kept_is_kept_the_next_time_in_parts_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MAX_ENTRY_BYTES", 64)
    monkeypatch.setattr(event_log, "MAX_KEPT_BYTES", 1000)

    class Away(MemoryStore):
        is_away = True

        async def put(self, key: str, entry: bytes) -> None:
            if self.is_away:
                raise StoreAway("test")
            await super().put(key, entry)

    async def work() -> None:
        store = Away()
        log = EventLog(store, "k")
        for number in range(50):
            log.put(b"%030d" % number + AFTER)
            with pytest.raises(StoreAway):
                await log.flush()
        assert len(log._waiting) < 1100
        store.is_away = False
        log.end()
        await log.flush()
        parts = [part for number in range(50) if (part := await store.get(part_key("k", number)))]
        assert max(map(len, parts)) == 64
        *events, last, nothing = b"".join(parts).split(AFTER)
        assert (events, last, nothing) == ([b"%030d" % number for number in range(31)], CUT, b"")
        await event_log.drop_parts(store, "k")
        assert not store.num_bytes

    run(work())


def test_a_quiet_stream_says_that_it_is_there() -> None:
    async def work() -> None:
        desk = Desk([*says("Paris")[:1], asyncio.Event()], settings=HttpSettings(keepalive_s=0.05))
        other = Desk([], desk.store, settings=HttpSettings(keepalive_s=0.05))
        async with desk.calls(), other.calls(), serving(desk.api.app) as port, serving(other.api.app) as another:
            reader, writer = await post_raw(port, RESPONSES, ASKED)
            await reader.readuntil(b": keep-alive")
            [(errand, _)] = desk.background._running.values()
            assert key_of("", errand.head.id) == errand.key
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{another}") as client:
                path = f"{RESPONSES}/{errand.head.id}?stream=true"
                async with client.stream("GET", path) as told:
                    async for line in told.aiter_lines():
                        if line == ": keep-alive":
                            break
            writer.close()

    run(work())
