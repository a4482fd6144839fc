"""What the gateway says it can do, and why it can't do more."""

from __future__ import annotations

import asyncio

import pytest

from gateway.errors import GatewayError
from gateway.health import MAX_NAMED
from tests.support.dispatch_rig import Reader, Rig, read, rig, run, tokens


def reasons(r: Rig) -> list[tuple[str, str]]:
    return [(each.code, each.worker) for each in r.dispatcher.health().reasons]


def test_an_undisturbed_pair_has_no_reasons() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill(), await r.decode()
            health = r.dispatcher.health()
            assert health.ready
            assert (health.status, health.paths, health.num_prefill, health.num_decode) == ("ok", ("split",), 1, 1)
            assert reasons(r) == []

    run(work())


def test_a_missing_pool_is_named() -> None:
    async def work() -> None:
        async with rig() as r:
            assert reasons(r) == [("no_prefill_worker", ""), ("no_decode_worker", "")]
            await r.decode(local_prefill_tokens=100)
            assert reasons(r) == [("no_prefill_worker", "")]
            assert r.dispatcher.health().ready

    run(work())


def test_a_silent_worker_is_named() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill()
            d = await r.decode()
            await asyncio.sleep(1.5)
            r.dispatcher.health()
            d.habits.beats = False
            await asyncio.sleep(3.5)
            assert reasons(r) == [("no_decode_worker", ""), ("worker_silent", "d1")]
            assert not r.dispatcher.health().ready

    run(work())


def test_workers_that_fit_nobody_are_named_on_both_sides() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill("p1", fingerprint="a")
            await r.decode("d1", fingerprint="a")
            await r.decode("d2", fingerprint="b")
            assert reasons(r) == [("worker_fits_nobody", "d2")]
            await r.prefill("p2", fingerprint="c")
            assert reasons(r) == [("worker_fits_nobody", "p2"), ("worker_fits_nobody", "d2")]
            assert "'c'" in r.dispatcher.health().reasons[0].message

    run(work())


def test_a_bus_that_is_away_or_silent_is_named() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill(), await r.decode()
            await asyncio.sleep(1.5)
            r.hub.cut(r.bus)
            health = r.dispatcher.health()
            assert not health.ready
            assert health.paths == ("split",)
            assert reasons(r) == [("bus_away", "")]
            r.hub.restore(r.bus)
            assert r.dispatcher.health().ready
            r.hub.filter = lambda subject, frame: ()
            await asyncio.sleep(4.0)
            assert ("bus_silent", "") in reasons(r)
            assert not r.dispatcher.health().ready
            r.hub.filter = None
            await asyncio.sleep(7.0)
            assert reasons(r) == []

    run(work())


def test_an_answer_names_a_bounded_number_of_workers() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill()
            for number in range(MAX_NAMED + 10):
                await r.decode(f"d{number}", fingerprint=f"other-{number}")
            assert len(reasons(r)) == MAX_NAMED

    run(work())


def test_draining_takes_nothing_new_and_lets_open_requests_end() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill()
            d = await r.decode()
            d.habits.token_s = 0.5
            reader = Reader(await r.submit(max_tokens=8))
            await reader.until(2)
            drained = asyncio.ensure_future(r.dispatcher.drain(30.0))
            await r.until(lambda: r.dispatcher.health().draining)
            assert not r.dispatcher.health().ready
            assert reasons(r) == [("draining", "")]
            with pytest.raises(GatewayError) as caught:
                await r.submit()
            assert (caught.value.status, caught.value.code) == (503, "draining")
            assert caught.value.retry_after_s
            assert await reader.all() == [tokens(0, 8)]
            await drained
            assert [o.kind for o in r.counts.outcomes] == ["refused", "finished"]
            await r.all_let_go()

    run(work())


def test_what_outlasts_the_grace_is_ended_and_its_client_may_come_again() -> None:
    async def work() -> None:
        async with rig() as r:
            p, d = await r.prefill(), await r.decode()
            d.habits.stall_decode_at = 2
            reader = Reader(await r.submit())
            await reader.until(2)
            began = asyncio.get_running_loop().time()
            await r.dispatcher.drain(3.0)
            assert asyncio.get_running_loop().time() - began == pytest.approx(3.0)
            error = await reader.failed()
            assert (error.status, error.code) == (503, "draining")
            assert [o.kind for o in r.counts.outcomes] == ["cancelled"]
            await r.nothing_left()
            assert not p.held
            assert not d.held

    run(work())


def test_an_idle_gateway_drains_at_once() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill(), await r.decode()
            await read(await r.submit())
            began = asyncio.get_running_loop().time()
            await r.dispatcher.drain(30.0)
            assert asyncio.get_running_loop().time() == began

    run(work())
