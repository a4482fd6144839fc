"""The copy of the roster keeps the same promises in memory and on a server, and never raises."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from runtime import roster_store
from runtime.logs import get_logger
from runtime.roster_store import MemoryRosterStore, RosterStore

MakeStore = Callable[[], RosterStore]


@pytest.fixture(params=["memory", pytest.param("valkey", marks=pytest.mark.nats)])
def make_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MakeStore:
    if request.param == "memory":
        return MemoryRosterStore
    url = request.getfixturevalue("redis_url")
    # Each test has keys of its own on the server that all share.
    monkeypatch.setattr(roster_store, "KEY_PREFIX", f"test:{time.monotonic_ns()}:")
    return lambda: RosterStore(url)


def test_what_was_put_is_found_replaced_and_removed(make_store: MakeStore, run: Any) -> None:
    async def main() -> None:
        store = make_store()
        assert await store.all() == []
        await store.put("p1", b"old", 60.0)
        await store.put("p1", b"\x00new\xff", 60.0)
        await store.put("d1", b"decode", 60.0)
        assert sorted(await store.all()) == [b"\x00new\xff", b"decode"]
        await store.remove("p1")
        await store.remove("p1")
        assert await store.all() == [b"decode"]
        await store.close()
        await store.close()

    run(main())


def test_an_entry_ends_with_its_time_to_live(make_store: MakeStore, run: Any) -> None:
    async def main() -> None:
        store = make_store()
        await store.put("p1", b"1", 0.02)
        await store.put("d1", b"2", 60.0)
        while len(await store.all()) == 2:
            await asyncio.sleep(0)
        assert await store.all() == [b"2"]
        await store.close()

    run(main())


def test_many_entries_are_all_found(make_store: MakeStore, run: Any) -> None:
    async def main() -> None:
        store = make_store()
        for number in range(700):
            await store.put(f"w{number}", b"%d" % number, 60.0)
        assert len(await store.all()) == 700
        await store.close()

    run(main())


@pytest.mark.nats
def test_a_second_client_sees_what_the_first_has_put(redis_url: str, run: Any) -> None:
    async def main() -> None:
        first, second = RosterStore(redis_url), RosterStore(redis_url)
        await first.put("shared", b"1", 60.0)
        assert b"1" in await second.all()
        await first.remove("shared")
        await first.close()
        await second.close()

    run(main())


def test_without_a_server_named_the_store_stays_empty(run: Any) -> None:
    async def main() -> None:
        store = RosterStore(None)
        await store.put("p1", b"1", 60.0)
        await store.remove("p1")
        assert await store.all() == []
        await store.close()

    run(main())


def test_a_server_that_is_away_costs_no_error_and_is_logged_once(
    free_port: int,
    run: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        store = RosterStore(f"redis://127.0.0.1:{free_port}")
        for _ in range(3):
            await store.put("p1", b"1", 60.0)
            assert await store.all() == []
            await store.remove("p1")
        await store.close()

    monkeypatch.setattr(roster_store, "log", get_logger("roster_store"))
    run(main())
    assert [each.getMessage() for each in caplog.records] == ["roster_store_failed"]


def test_a_server_that_never_answers_is_given_up_in_time(run: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(roster_store, "CALL_TIMEOUT_S", 0.02)

    async def main() -> None:
        silent = asyncio.Event()

        async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await silent.wait()
            writer.close()

        server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        store = RosterStore(f"redis://127.0.0.1:{port}")
        assert await store.all() == []
        await store.put("p1", b"1", 60.0)
        await store.close()
        silent.set()
        server.close()
        await server.wait_closed()

    run(main())


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="redis"):
        RosterStore("http://127.0.0.1")
