"""What the gateway tells workers while a request runs: acks, wants, stops."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.acks import Acks
from protocol.messages import (
    Ack,
    Cancel,
    PrefillRequest,
    Stop,
    TokenEvent,
    TokenEvents,
    Wanted,
)
from tests.support.dispatch_rig import QUICK, Reader, read, rig, run, tokens


def test_workers_are_told_each_second_what_is_still_wanted() -> None:
    async def work() -> None:
        async with rig() as r:
            p, d = await r.prefill(), await r.decode()
            p.habits.stall_handover = True
            stream = await r.submit()
            await r.until(lambda: len(p.of(Wanted)) > 1 and len(d.of(Wanted)) > 1)
            wanted = d.of(Wanted)[0]
            assert isinstance(wanted, Wanted)
            assert [(ref.request_id, ref.attempt) for ref in wanted.attempts] == [(stream.request_id, 1)]
            stream.cancel("test")
            await r.nothing_left()

    run(work())


def test_once_adopted_the_prefill_worker_is_wanted_no_more() -> None:
    async def work() -> None:
        async with rig() as r:
            p, d = await r.prefill(), await r.decode()
            d.habits.stall_decode_at = 2
            stream = await r.submit()
            await Reader(stream).until(2)
            before, after = len(p.of(Wanted)), len(d.of(Wanted))
            await r.until(lambda: len(d.of(Wanted)) > after + 2)
            assert len(p.of(Wanted)) <= before + 1
            stream.cancel("test")

    run(work())


def test_acks_are_collected_into_one_message_a_worker() -> None:
    async def work() -> None:
        async with rig(replace(QUICK, ack_s=0.05)) as r:
            await r.prefill()
            d = await r.decode()
            acks = d.also_hear(Ack)
            streams = [await r.submit(max_tokens=4) for _ in range(10)]
            for stream in streams:
                await read(stream)
            await r.all_let_go()
            assert len(acks) <= 2
            last = acks[-1]
            assert isinstance(last, Ack)
            assert {item.next_index for item in last.items} == {5}

    run(work())


@pytest.mark.parametrize(("pause_s", "num_sent"), [(0.0, 1), (60.0, 0)])
def test_acks_that_have_waited_long_enough_go_when_tokens_come(pause_s: float, num_sent: int) -> None:
    async def work() -> None:
        async with rig() as r:
            d = await r.decode()
            heard = d.also_hear(Ack)
            acks = Acks(r.postbox, pause_s)
            acks.note(d.me, "req-1", 1, 0, 5)
            acks.flush_ripe()
            assert len(acks) == 1 - num_sent
            acks.flush()
            await r.until(lambda: len(heard) == 1)

    run(work())


def test_events_of_a_request_that_is_over_are_acknowledged_and_cancelled() -> None:
    async def work() -> None:
        async with rig() as r:
            d = await r.decode()
            key = ("req-unknown", 1)
            d.emitter.begin(key, r.postbox.me)
            d.emitter.add(TokenEvent(*key, 0, 0, (7, 8), (), "", -1, -1, 0))
            d.emitter.flush()
            await r.until(lambda: d.of(Cancel))
            await r.until(lambda: not d.emitter.num_unacknowledged(key))
            await r.nothing_left()

    run(work())


def test_a_stop_ends_one_choice_and_the_others_go_on() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill()
            d = await r.decode()
            d.habits.token_s = 0.002
            stream = await r.submit(max_tokens=30, n=2)
            reader = Reader(stream, 2)
            await reader.until(3, choice=0)
            stream.stop(0, 2)
            all_tokens = await reader.all()
            assert all_tokens[1] == tokens(1, 30)
            assert len(all_tokens[0]) < 30
            assert 0 not in reader.ends
            await r.all_let_go()
            (stop, *_) = d.of(Stop)
            assert isinstance(stop, Stop)
            assert (stop.choice, stop.num_tokens) == (0, 2)
            assert r.counts.outcomes[0].num_output_tokens == 32
            assert r.counts.outcomes[0].num_wasted_tokens >= 1

    run(work())


def test_a_lost_stop_is_sent_again_when_the_choice_says_more() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill()
            d = await r.decode()
            d.habits.token_s = 0.002
            d.habits.deaf_to = (Stop,)
            stream = await r.submit(max_tokens=60, n=2)
            reader = Reader(stream, 2)
            await reader.until(3, choice=0)
            stream.stop(0, 3)
            await r.until(lambda: len(d.of(Stop)) >= 2)
            d.habits.deaf_to = ()
            assert (await reader.all())[1] == tokens(1, 60)
            await r.all_let_go()

    run(work())


def test_stopping_the_last_live_choice_cancels_both_workers_and_finishes() -> None:
    async def work() -> None:
        async with rig() as r:
            p, d = await r.prefill(), await r.decode()
            d.habits.token_s = 0.002
            stream = await r.submit(max_tokens=500)
            reader = Reader(stream)
            await reader.until(3)
            stream.stop(0, 3)
            await reader.all()
            await r.nothing_left()
            assert p.of(Cancel)
            assert d.of(Cancel)
            assert not d.held
            assert [o.kind for o in r.counts.outcomes] == ["finished"]
            assert r.counts.outcomes[0].num_output_tokens == 3

    run(work())


def test_a_stop_before_adoption_goes_to_both_workers() -> None:
    async def work() -> None:
        async with rig() as r:
            p, d = await r.prefill(), await r.decode()
            p.habits.stall_handover = True
            stream = await r.submit(max_tokens=9, n=2)
            reader = Reader(stream, 2)
            await reader.until(1, choice=0)
            stream.stop(0, 1)
            await r.until(lambda: p.of(Stop) and d.of(Stop))
            stream.cancel("test")
            assert (await reader.failed()).code == "cancelled"

    run(work())


def test_a_worker_that_sends_impossible_tokens_loses_the_request_to_another() -> None:
    async def work() -> None:
        async with rig() as r:
            p1, p2 = await r.prefill("p1"), await r.prefill("p2", waiting_tokens=9)
            await r.decode()
            p1.habits.stall_prefill = True
            stream = await r.submit(max_tokens=3)
            event = TokenEvent(stream.request_id, 1, 0, 0, (1, 2, 3, 4), (), "", -1, -1, 0)
            p1.postbox.send(r.postbox.me, TokenEvents("prefill", (event,)))
            assert await read(stream) == [tokens(0, 3)]
            await r.nothing_left()
            assert p2.of(PrefillRequest)
            assert r.counts.kept_out_for == [("prefill", "engine_failed")]

    run(work())
