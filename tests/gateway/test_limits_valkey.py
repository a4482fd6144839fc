"""Limits over a real server, with the rights that a gateway has there: it goes, and comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.keys import Key
from gateway.limiter import Limiter
from gateway.limits import CONCURRENCY, LEASE_S, Limits, StoreAwayError
from gateway.redis_limits import PREFIX, RedisLimits
from kvferry.brokers import running, valkey_broker
from kvferry.secrets_redis import RULES
from runtime.redis_client import open_redis
from tests.support.http_twin import run, until

pytestmark = pytest.mark.nats

PATIENT_S = 10.0
KEY = Key("alice", b"", Limits(requests_per_minute=100, tokens_per_minute=10_000, concurrency=8))


def limiter_at(url: str) -> Limiter:
    return Limiter(RedisLimits(open_redis(url, PATIENT_S), LEASE_S, PREFIX, PATIENT_S))


def test_a_store_that_stops_costs_no_request_and_counts_everything_when_it_is_back(tmp_path: Path) -> None:
    async def work(url: str, admin_url: str, command: tuple[str, ...]) -> None:
        one, two = limiter_at(url), limiter_at(url)
        stays = [await one.enter(KEY) for _ in range(3)]
        for stay in stays:
            await one.take(stay, 100)
        await two.leave(await two.enter(KEY), 50)
        assert not one.alone
        await stop(admin_url)
        stays += [await one.enter(KEY) for _ in range(3)]
        assert [stay.verdict.refused_by for stay in stays] == [""] * 6
        assert one.alone
        async with started(command):
            keeping = asyncio.ensure_future(one.keep())
            await until(lambda: not one.alone)
            three = limiter_at(url)
            others = [await three.enter(KEY) for _ in range(3)]
            assert [stay.verdict.refused_by for stay in others] == ["", "", CONCURRENCY]
            for stay in stays:
                await one.leave(stay, 10)
            assert (await three.enter(KEY)).verdict.refused_by == ""
            assert not one.alone
            assert not three.alone
            keeping.cancel()
            for each in (one, two, three):
                await each.close()

    rules = {**RULES, "admin": "+shutdown"}
    with running(lambda folder: valkey_broker(folder, rules), tmp_path) as broker:
        run(work(broker.urls["gateway"], broker.urls["admin"], broker.command))


def test_a_server_that_permits_too_little_is_away_however_well_it_answers(tmp_path: Path) -> None:
    async def work(urls: Mapping[str, str]) -> None:
        rich, poor = (
            RedisLimits(open_redis(urls[user], PATIENT_S), timeout_s=PATIENT_S) for user in ("gateway", "poor")
        )
        await rich.warm()
        with pytest.raises(StoreAwayError, match="hset"):
            await poor.warm()
        await rich.close()
        await poor.close()

    rules = {**RULES, "poor": f"{RULES['gateway']} -hset"}
    with running(lambda folder: valkey_broker(folder, rules), tmp_path) as broker:
        run(work(broker.urls))


@asynccontextmanager
async def started(command: tuple[str, ...]) -> AsyncIterator[None]:
    server = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL)
    try:
        yield
    finally:
        server.kill()
        await server.wait()


async def stop(admin_url: str) -> None:
    client = open_redis(admin_url, PATIENT_S)
    await client.shutdown(nosave=True)
    await client.aclose()
