"""Workers that crash over a request: it isn't given to a third."""

from __future__ import annotations

from protocol.messages import Failed
from tests.support.dispatch_rig import Reader, Rig, rig, run, tokens
from tests.support.scripted_worker import ScriptedWorker


async def three(r: Rig) -> list[ScriptedWorker]:
    await r.prefill()
    found = [await r.decode(f"d{number}", free_blocks=1000 - number) for number in range(3)]
    for d in found:
        d.habits.stall_decode_at = 2
    return found


def crash(d: ScriptedWorker, unasked: bool = True) -> None:
    """Its engine ends: the requests of the step are named, and the life is over."""
    if unasked:
        d.fail("worker_crashed")
    d.die()


def busy(workers: list[ScriptedWorker]) -> ScriptedWorker:
    (found,) = [d for d in workers if d.held]
    return found


def test_two_crashes_over_one_request_end_it() -> None:
    async def work() -> None:
        async with rig() as r:
            workers = await three(r)
            reader = Reader(await r.submit(max_tokens=9))
            await reader.until(2)
            crash(busy(workers))
            for d in workers:
                d.habits.stall_decode_at = 4
            await reader.until(4)
            crash(busy(workers))
            error = await reader.failed()
            assert (error.status, error.code, error.retry_after_s) == (500, "worker_crashed", None)
            assert [(o.kind, o.code) for o in r.counts.outcomes] == [("failed", "worker_crashed")]
            assert r.counts.outcomes[0].num_attempts == 2
            await r.nothing_left()

    run(work())


def test_workers_that_were_ended_from_outside_do_not_count() -> None:
    async def work() -> None:
        async with rig() as r:
            workers = await three(r)
            reader = Reader(await r.submit(max_tokens=9))
            await reader.until(2)
            crash(busy(workers))
            for d in workers:
                d.habits.stall_decode_at = 4
            await reader.until(4)
            crash(busy(workers), unasked=False)
            for d in workers:
                d.habits.stall_decode_at = 1 << 30
            assert await reader.all() == [tokens(0, 9)]
            assert r.counts.outcomes[0].num_attempts == 3
            await r.all_let_go()

    run(work())


def test_one_crash_told_twice_and_passed_on_by_its_peer_counts_once() -> None:
    async def work() -> None:
        async with rig() as r:
            p1 = await r.prefill("p1")
            await r.prefill("p2", waiting_tokens=9)
            d = await r.decode()
            p1.habits.stall_prefill = True
            reader = Reader(await r.submit(max_tokens=6))
            await r.until(lambda: p1.held and d.held)
            ((key, _),) = p1.held.items()
            word = Failed(*key, "prefill", "worker_crashed", "test")
            d.postbox.send(r.postbox.me, word)
            p1.postbox.send(r.postbox.me, word)
            p1.postbox.send(r.postbox.me, word)
            assert await reader.all() == [tokens(0, 6)]
            await r.all_let_go()

    run(work())


def test_a_crash_that_is_told_after_the_death_was_seen_counts_all_the_same() -> None:
    async def work() -> None:
        async with rig() as r:
            workers = await three(r)
            stream = await r.submit(max_tokens=9)
            reader = Reader(stream)
            await reader.until(2)
            first = busy(workers)
            first.die()
            for d in workers:
                d.habits.stall_decode_at = 4
            await reader.until(4)
            word = Failed(stream.request_id, 1, "decode", "worker_crashed", "late")
            first.postbox.send(r.postbox.me, word)
            crash(busy([d for d in workers if d is not first]))
            assert (await reader.failed()).code == "worker_crashed"
            await r.nothing_left()

    run(work())


def test_a_stranger_cannot_accuse() -> None:
    async def work() -> None:
        async with rig() as r:
            workers = await three(r)
            stream = await r.submit(max_tokens=9)
            reader = Reader(stream)
            await reader.until(2)
            for d in workers:
                d.habits.stall_decode_at = 1 << 30
                for number in range(4):
                    if not d.held:
                        word = Failed(stream.request_id, number, "decode", "worker_crashed", "lie")
                        d.postbox.send(r.postbox.me, word)
            crash(busy(workers))
            assert await reader.all() == [tokens(0, 9)]

    run(work())
