"""Stores of responses: the same promises in memory and on a real server, with the rights that a gateway has there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.responses_api.redis_store import RedisStore
from gateway.responses_api.store import MemoryStore, ResponseStore, StoreAway
from kvferry.brokers import running, valkey_broker
from runtime.redis_client import open_redis
from tests.support.http_twin import run

TTL_S = 3600.0
MAX_BYTES = 1000
PATIENT_S = 10.0

Check = Callable[[ResponseStore], Awaitable[None]]


async def keeps_and_forgets(store: ResponseStore) -> None:
    assert await store.get("a") is None
    await store.put("a", b"\xff one")
    await store.put("b", b"two")
    await store.put("a", b"three")
    assert (await store.get("a"), await store.get("b")) == (b"three", b"two")
    assert await store.drop("a")
    assert not await store.drop("a")
    assert (await store.get("a"), await store.get("b")) == (None, b"two")


async def has_room_for_the_newest(store: ResponseStore) -> None:
    for name in "abcd":
        await store.put(name, name.encode() * 300)
        await asyncio.sleep(0.002)  # servers count in milliseconds: so that each has its own end
    assert [await store.get(name) is not None for name in "abcd"] == [False, True, True, True]
    await store.put("b", b"x" * 350)
    await store.put("e", b"y" * 300)
    assert [await store.get(name) is not None for name in "abcde"] == [False, True, False, True, True]
    await store.put("whole", b"z" * MAX_BYTES)
    assert [await store.get(name) is not None for name in "bde"] == [False] * 3
    await store.drop("whole")
    await store.put("a", b"z" * MAX_BYTES)
    assert await store.get("a")


async def knows_who_works_on_it(store: ResponseStore) -> None:
    assert not await store.is_leased("a")
    assert not await store.renew("a")
    assert not await store.end("a")
    await store.lease("a")
    assert await store.is_leased("a")
    assert await store.renew("a")
    assert await store.end("a")
    assert not await store.is_leased("a")
    await store.lease("b")
    await store.put("b", b"x")
    await store.drop("b")
    assert not await store.renew("b")


CHECKS: list[Check] = [keeps_and_forgets, has_room_for_the_newest, knows_who_works_on_it]


@pytest.mark.parametrize("check", CHECKS)
def test_in_memory(check: Check) -> None:
    run(check(MemoryStore(TTL_S, MAX_BYTES)))  # type: ignore[arg-type]


def test_what_has_ended_in_memory_is_gone_and_makes_room() -> None:
    async def work() -> None:
        now = [0.0]
        store = MemoryStore(10.0, MAX_BYTES, lambda: now[0])
        await store.put("a", b"x" * 600)
        await store.lease("a")
        now[0] = 10.0
        assert await store.get("a") is None
        assert not await store.drop("a")
        await store.put("b", b"x" * 600)
        now[0] = 20.0
        await store.put("c", b"x")
        assert store.num_bytes == 1

    run(work())


@asynccontextmanager
async def store_at(url: str, prefix: str, ttl_s: float = TTL_S) -> AsyncIterator[RedisStore]:
    store = RedisStore(open_redis(url, PATIENT_S), ttl_s, MAX_BYTES, f"kvferry:responses:{prefix}:", PATIENT_S)
    try:
        yield store
    finally:
        await store.close()


@pytest.mark.nats
def test_on_a_server(tmp_path: Path) -> None:
    async def work(url: str) -> None:
        for number, check in enumerate(CHECKS):
            async with store_at(url, str(number)) as store:
                await check(store)
        async with store_at(url, "short", 0.05) as store, store_at(url, "short") as other:
            await store.put("a", b"x" * 900)
            while await other.get("a") is not None:
                await asyncio.sleep(0.01)
            await other.put("b", b"x" * 900)
            assert await store.get("b")

    with running(valkey_broker, tmp_path) as broker:
        run(work(broker.urls["gateway"]))


def test_a_server_that_is_away_is_told_as_such_at_once() -> None:
    async def work() -> None:
        store = RedisStore(open_redis("redis://127.0.0.1:1", 0.2), timeout_s=0.5)
        for _ in range(3):
            with pytest.raises(StoreAway):
                await store.get("a")
        with pytest.raises(StoreAway, match="a moment ago"):
            await store.put("a", b"x")
        await store.close()

    run(work())
