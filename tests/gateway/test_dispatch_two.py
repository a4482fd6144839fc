"""Two gateways over the same workers: they know nothing of each other and need not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from protocol.messages import Cancel
from tests.support.dispatch_rig import QUICK, Reader, Rig, rig, run, tokens

PATIENT = replace(QUICK, queue_s=600.0)


@asynccontextmanager
async def second(first: Rig) -> AsyncIterator[Rig]:
    made = Rig(PATIENT, first.hub, "gateway-2")
    await made.open()
    try:
        yield made
    finally:
        await made.close()


def test_both_are_served_and_neither_disturbs_the_other() -> None:
    async def work() -> None:
        async with rig(PATIENT) as one, second(one) as two:
            await one.prefill("p1"), await one.decode("d1"), await one.decode("d2")
            await two.until(lambda: two.dispatcher.health().num_decode == 2)
            readers = [Reader(await r.submit(max_tokens=9)) for _ in range(8) for r in (one, two)]
            for reader in readers:
                assert await reader.all() == [tokens(0, 9)]
            for r in (one, two):
                await r.all_let_go()
                assert [o.kind for o in r.counts.outcomes] == ["finished"] * 8
                assert [o.num_attempts for o in r.counts.outcomes] == [1] * 8
            assert not any(w.of(Cancel) for w in one.workers)

    run(work())


def test_room_that_one_takes_is_refused_to_the_other_which_waits() -> None:
    async def work() -> None:
        async with rig(PATIENT) as one, second(one) as two:
            _, d = await one.prefill(), await one.decode()
            d.habits.max_held, d.habits.token_s = 3, 0.05
            most = 0

            def watch() -> bool:
                nonlocal most
                most = max(most, len(d.held))
                return False

            await two.until(lambda: two.dispatcher.health().ready)
            tasks = [r.queued(max_tokens=5, prompt=20 + n) for n in range(6) for r in (one, two)]
            watcher = asyncio.ensure_future(one.until(watch))
            pump = asyncio.ensure_future(_let_go(d))
            for task in tasks:
                assert await Reader(await task).all() == [tokens(0, 5)]
            watcher.cancel()
            pump.cancel()
            await asyncio.gather(watcher, pump, return_exceptions=True)
            assert most == 3
            for r in (one, two):
                await r.nothing_left()
                assert [o.kind for o in r.counts.outcomes] == ["finished"] * 6

    async def _let_go(d: object) -> None:
        """A real worker drops what is acknowledged to the end."""
        while True:
            await asyncio.sleep(0.01)
            for key in [k for k, h in d.held.items() if h.emitting and not d.emitter.num_unacknowledged(k)]:  # type: ignore[attr-defined]
                d._drop(key)  # type: ignore[attr-defined]

    run(work())


def test_one_that_dies_leaves_the_others_requests_alone() -> None:
    async def work() -> None:
        async with rig(PATIENT) as one:
            await one.prefill()
            d = await one.decode()
            d.habits.token_s = 0.05
            async with second(one) as two:
                await two.until(lambda: two.dispatcher.health().ready)
                theirs = Reader(await two.submit(max_tokens=50))
                ours = Reader(await one.submit(max_tokens=20))
                await theirs.until(2)
                one.hub.cut(two.bus)
            assert await ours.all() == [tokens(0, 20)]
            assert (await theirs.failed()).code == "draining"
            await one.nothing_left()
            assert [o.num_attempts for o in one.counts.outcomes] == [1]

    run(work())
