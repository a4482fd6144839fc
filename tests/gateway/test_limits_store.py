"""Where keys stand: the same promises in memory and on a server."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

import pytest
import redis.asyncio

from gateway.limits import CONCURRENCY, LEASE_S, REQUESTS, TOKENS, Limits, LimitStore, StoreAwayError, StoreBusyError
from gateway.memory_limits import MemoryLimits
from gateway.redis_limits import CALL_TIMEOUT_S, MAX_CALLS, RedisLimits
from runtime.redis_client import open_redis
from tests.support.http_twin import run

MakeStore = Callable[..., LimitStore]
PATIENT_S = 10.0
"""For tests on a busy machine; what a call may take in earnest has a test of its own."""


@pytest.fixture(params=["memory", pytest.param("valkey", marks=pytest.mark.nats)])
def make_store(request: pytest.FixtureRequest) -> MakeStore:
    if request.param == "memory":
        return MemoryLimits
    url = request.getfixturevalue("redis_url")
    prefix = f"test:{secrets.token_hex(8)}:"
    return lambda lease_s=LEASE_S: RedisLimits(open_redis(url, PATIENT_S), lease_s, prefix, PATIENT_S)


def test_a_minutes_worth_of_requests_passes_and_the_next_one_is_told_when(make_store: MakeStore) -> None:
    async def work() -> None:
        store, limits = make_store(), Limits(requests_per_minute=3)
        for number in range(3):
            verdict = await store.enter("alice", limits, "")
            assert (verdict.refused_by, verdict.retry_ms) == ("", 0)
            assert 20_000 * number < verdict.requests_debt_ms <= 20_000 * (number + 1)
        refused = await store.enter("alice", limits, "")
        assert refused.refused_by == REQUESTS
        assert 15_000 < refused.retry_ms <= 20_000
        assert (await store.enter("bob", limits, "")).refused_by == ""
        await store.close()

    run(work())


def test_what_was_spent_grows_back_however_often_it_is_asked_for(make_store: MakeStore) -> None:
    async def work() -> None:
        store, limits = make_store(), Limits(tokens_per_minute=60_000)  # one a millisecond
        assert (await store.take("alice", limits, 60_000)).refused_by == ""
        assert (await store.take("alice", limits, 60_000)).refused_by == TOKENS
        while (await store.take("alice", limits, 20)).refused_by:
            pass
        await store.close()

    run(work())


def test_tokens_are_taken_all_or_none_and_given_back(make_store: MakeStore) -> None:
    async def work() -> None:
        store, limits = make_store(), Limits(tokens_per_minute=100)
        assert (await store.take("alice", limits, 60)).refused_by == ""
        refused = await store.take("alice", limits, 60)
        assert refused.refused_by == TOKENS
        assert 10_000 < refused.retry_ms <= 12_000
        assert (await store.enter("alice", limits, "")).refused_by == ""
        back = await store.leave("alice", limits, "", 50)
        assert 5_000 < back.tokens_debt_ms <= 6_000
        assert (await store.take("alice", limits, 90)).refused_by == ""
        await store.close()

    run(work())


def test_tokens_used_beyond_the_reserved_are_a_debt_before_the_next_request(make_store: MakeStore) -> None:
    async def work() -> None:
        store, limits = make_store(), Limits(tokens_per_minute=100)
        await store.take("alice", limits, 100)
        debt = await store.leave("alice", limits, "", -100)
        assert 110_000 < debt.tokens_debt_ms <= 120_000
        refused = await store.enter("alice", limits, "")
        assert refused.refused_by == TOKENS
        assert 55_000 < refused.retry_ms <= 61_000
        await store.close()

    run(work())


def test_no_debt_is_longer_than_an_hour(make_store: MakeStore) -> None:
    async def work() -> None:
        store, limits = make_store(), Limits(tokens_per_minute=1)
        assert (await store.leave("alice", limits, "", -10_000_000)).tokens_debt_ms == 3_600_000
        await store.close()

    run(work())


def test_slots_are_held_until_they_are_left(make_store: MakeStore) -> None:
    async def work() -> None:
        store, limits = make_store(), Limits(concurrency=2, requests_per_minute=100)
        assert [(await store.enter("alice", limits, lease)).refused_by for lease in "abc"] == ["", "", CONCURRENCY]
        assert (await store.enter("bob", limits, "a")).refused_by == ""
        await store.leave("alice", limits, "b", 0)
        await store.leave("alice", limits, "b", 0)
        verdict = await store.enter("alice", limits, "c")
        assert verdict.refused_by == ""
        assert verdict.requests_debt_ms <= 1800  # three requests: the refused one counts nothing
        assert (await store.enter("alice", limits, "d")).refused_by == CONCURRENCY
        await store.close()

    run(work())


def test_slots_of_a_gateway_that_died_come_free_and_renewed_ones_do_not(make_store: MakeStore) -> None:
    async def work() -> None:
        store, limits = make_store(lease_s=0.1), Limits(concurrency=2)
        for lease in ("dead", "alive"):
            assert (await store.enter("alice", limits, lease)).refused_by == ""
        while (await store.enter("alice", limits, "next")).refused_by:
            await store.renew({"alice": ["alive"]})
        await store.renew({"alice": ["alive", "next"]})
        assert (await store.enter("alice", limits, "more")).refused_by == CONCURRENCY
        await store.close()

    run(work())


def test_renewing_tells_a_store_that_was_away_of_slots_it_never_heard_of(make_store: MakeStore) -> None:
    async def work() -> None:
        store, limits = make_store(), Limits(concurrency=1)
        await store.renew({"alice": ["given elsewhere"], "bob": []})
        assert (await store.enter("alice", limits, "a")).refused_by == CONCURRENCY
        await store.leave("alice", limits, "given elsewhere", 0)
        assert (await store.enter("alice", limits, "a")).refused_by == ""
        await store.close()

    run(work())


def test_many_at_once_get_no_more_than_there_is(make_store: MakeStore) -> None:
    async def work() -> None:
        store, other = make_store(), make_store()
        if isinstance(store, MemoryLimits):
            other = store
        await store.warm()
        limits = Limits(requests_per_minute=20, concurrency=15)
        asked = [(store, other)[number % 2].enter("alice", limits, f"{number}") for number in range(40)]
        refusals = [verdict.refused_by for verdict in await asyncio.gather(*asked)]
        assert refusals.count("") == 15
        await store.close()
        await other.close()

    run(work())


def test_memory_and_time_are_those_of_the_clock() -> None:
    async def work() -> None:
        now = 0.0
        store, limits = MemoryLimits(clock=lambda: now), Limits(requests_per_minute=2, concurrency=5)
        assert [(await store.enter("alice", limits, lease)).refused_by for lease in "abc"] == ["", "", REQUESTS]
        now = 29.9
        assert (await store.enter("alice", limits, "c")).refused_by == REQUESTS
        now = 30.0
        assert (await store.enter("alice", limits, "c")).refused_by == ""
        now = 1000.0
        verdicts = [await store.enter("alice", limits, lease) for lease in "def"]
        assert [verdict.refused_by for verdict in verdicts] == [
            "",
            "",
            REQUESTS,
        ]  # no more than a minute's worth is saved
        assert verdicts[2].retry_ms == pytest.approx(30_000)

    run(work())


@pytest.mark.nats
def test_the_server_gets_names_and_numbers_and_forgets_them(redis_url: str) -> None:
    async def work() -> None:
        client = open_redis(redis_url, PATIENT_S)
        prefix = f"test:{secrets.token_hex(8)}:"
        store = RedisLimits(open_redis(redis_url, PATIENT_S), LEASE_S, prefix, PATIENT_S)
        limits = Limits(requests_per_minute=60, tokens_per_minute=60, concurrency=2)
        await store.enter("alice", limits, "a")
        await store.take("alice", limits, 30)
        keys = sorted([key async for key in client.scan_iter(match=prefix + "*")])
        assert keys == [f"{prefix}{{alice}}:open".encode(), f"{prefix}{{alice}}:rate".encode()]
        assert 0 < await client.pttl(keys[0]) <= LEASE_S * 1000 + 1000
        assert 0 < await client.pttl(keys[1]) <= 31_000
        await store.close()
        await client.aclose()

    run(work())


@pytest.mark.nats
def test_a_server_that_has_lost_its_scripts_is_taught_again(redis_url: str) -> None:
    async def work() -> None:
        client = open_redis(redis_url, PATIENT_S)
        store = RedisLimits(open_redis(redis_url, PATIENT_S), LEASE_S, f"test:{secrets.token_hex(8)}:", PATIENT_S)
        assert (await store.enter("alice", Limits(concurrency=1), "a")).refused_by == ""
        await client.script_flush()
        assert (await store.enter("alice", Limits(concurrency=1), "b")).refused_by == CONCURRENCY
        await store.close()
        await client.aclose()

    run(work())


def test_a_server_that_never_answers_is_away_within_the_time_of_a_call() -> None:
    async def work() -> None:
        silent = asyncio.Event()

        async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await silent.wait()
            writer.close()

        server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        store = RedisLimits(open_redis(f"redis://127.0.0.1:{port}", PATIENT_S))
        began = asyncio.get_running_loop().time()
        for _ in range(2):
            with pytest.raises(StoreAwayError):
                await store.enter("alice", Limits(concurrency=1), "a")
        assert asyncio.get_running_loop().time() - began < 2 * CALL_TIMEOUT_S + 0.5
        silent.set()
        server.close()
        await server.wait_closed()
        await store.close()

    run(work())


def test_a_server_that_is_none_is_away() -> None:
    async def work() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b":many\r\n" * 20)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        store = RedisLimits(open_redis(f"redis://127.0.0.1:{port}", PATIENT_S))
        with pytest.raises(StoreAwayError):
            await store.enter("alice", Limits(concurrency=1), "a")
        with pytest.raises(StoreAwayError):
            await store.warm()
        server.close()
        await server.wait_closed()
        await store.close()

    run(work())


def test_who_waits_for_a_turn_in_vain_learns_that_the_server_is_busy_not_away() -> None:
    async def work() -> None:
        store = RedisLimits(redis.asyncio.Redis(port=1), timeout_s=0.01)
        for _ in range(MAX_CALLS):
            await store._calls.acquire()
        with pytest.raises(StoreBusyError):
            await store.enter("alice", Limits(concurrency=1), "a")
        await store.close()

    run(work())
