"""Whoever has one role's credentials at Redis can use that role's commands on that role's keys, and no others."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from gateway.limits import Limits
from gateway.redis_limits import RedisLimits
from kvferry.broker_access import OPERATOR, ROLES
from kvferry.brokers import Broker
from runtime.redis_client import open_redis
from runtime.roster_store import RosterStore

pytestmark = pytest.mark.nats

DANGEROUS = (
    "FLUSHALL", "FLUSHDB", "KEYS *", "CONFIG GET *", "CONFIG SET dir /tmp", "SAVE", "SHUTDOWN NOSAVE", "OBJECT HELP",
    "MONITOR", "CLIENT LIST", "CLIENT KILL TYPE normal", "ACL LIST", "ACL SETUSER x on nopass ~* +@all", "SCRIPT FLUSH",
    "MODULE LIST", "REPLICAOF 127.0.0.1 1", "MIGRATE 127.0.0.1 1 k 0 1", "SWAPDB 0 1", "FUNCTION LIST", "INFO",
    "DBSIZE", "SLOWLOG GET", "SUBSCRIBE x", "PUBLISH x y", "GET kvferry:roster:decode-1", "RENAME a b", "DUMP a",
)  # fmt: skip


@pytest.fixture
def clients(store: Broker) -> Iterator[dict[str, redis.Redis]]:
    """A client of each role."""
    made = {role: redis.Redis.from_url(store.urls[role], retry=Retry(NoBackoff(), 0)) for role in ROLES}
    yield made
    for client in made.values():
        client.close()


@pytest.mark.parametrize("role", ROLES)
def test_nobody_can_do_what_no_role_needs(clients: dict[str, redis.Redis], role: str) -> None:
    for command in DANGEROUS:
        with pytest.raises(redis.exceptions.NoPermissionError):
            clients[role].execute_command(*command.split())


@pytest.mark.parametrize("role", ROLES)
def test_nobody_writes_anothers_keys(clients: dict[str, redis.Redis], role: str) -> None:
    keys = [
        "kvferry:roster:prefill-1",
        "kvferry:roster:decode-1",
        "kvferry:roster:gateway-1",
        "kvferry:limits:{a}:rate",
        "k",
    ]
    for key in keys:
        if key.startswith(f"kvferry:roster:{role}-") and role != "gateway":
            continue
        with pytest.raises(redis.exceptions.NoPermissionError):
            clients[role].set(key, "forged")
        with pytest.raises(redis.exceptions.NoPermissionError):
            clients[role].delete(key)


def test_workers_read_nothing_and_operators_no_limits(clients: dict[str, redis.Redis]) -> None:
    for role in ("prefill", "decode"):
        with pytest.raises(redis.exceptions.NoPermissionError):
            clients[role].mget("kvferry:roster:decode-1")
        with pytest.raises(redis.exceptions.NoPermissionError):
            clients[role].scan()
    with pytest.raises(redis.exceptions.NoPermissionError):
        clients[OPERATOR].mget("kvferry:limits:{a}:rate")


def test_a_script_has_its_users_rights_and_no_more(clients: dict[str, redis.Redis]) -> None:
    for role in ("prefill", "decode", OPERATOR):
        with pytest.raises(redis.exceptions.NoPermissionError):
            clients[role].eval("return 1", 0)
    for command in ("'FLUSHALL'", "'HSET', 'kvferry:roster:decode-1', 'a', 'b'", "'KEYS', '*'"):
        with pytest.raises(redis.exceptions.ResponseError):
            clients["gateway"].eval(f"return redis.call({command})", 0)


def test_each_role_can_do_its_work(store: Broker, run: Any) -> None:
    async def main() -> None:
        for role in ("prefill", "decode"):
            worker = RosterStore(store.urls[role])
            await worker.put(f"{role}-1", role.encode(), 60.0)
            await worker.close()
        for role in ("gateway", OPERATOR):
            reader = RosterStore(store.urls[role])
            assert sorted(await reader.all()) == [b"decode", b"prefill"]
            await reader.close()
        leaving = RosterStore(store.urls["decode"])
        await leaving.remove("decode-1")
        await leaving.close()
        limits = RedisLimits(open_redis(store.urls["gateway"], 5.0))
        verdict = await limits.enter("team", Limits(), "lease")
        assert verdict.refused_by == ""
        await limits.close()

    run(main())


def test_without_a_password_or_with_anothers_nobody_is_let_in(store: Broker) -> None:
    address = urlsplit(store.urls["gateway"])
    logins = [
        (None, None),
        ("default", ""),
        ("default", address.password),
        ("decode", address.password),
        ("gateway", "x"),
    ]
    for user, password in logins:
        client = redis.Redis(
            str(address.hostname), int(address.port or 0), username=user, password=password, retry=Retry(NoBackoff(), 0)
        )
        with client, pytest.raises(redis.exceptions.AuthenticationError):
            client.ping()
