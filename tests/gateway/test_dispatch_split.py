"""The undisturbed ways through the dispatcher."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.errors import GatewayError
from protocol.messages import (
    Ack,
    Cancel,
    Finished,
    Peer,
    PrefillRequest,
    Reserve,
    Stop,
    TokenEvent,
    TokenEvents,
    Wanted,
)
from tests.support.dispatch_rig import QUICK, Reader, read, rig, run, tokens


def test_a_split_request_gives_each_token_once_and_in_order() -> None:
    async def work() -> None:
        async with rig() as r:
            p, d = await r.prefill(), await r.decode()
            stream = await r.submit(max_tokens=5)
            assert stream.path == "split"
            assert await read(stream) == [tokens(0, 5)]
            assert stream.num_attempts == 1
            assert stream.num_cached_tokens == 20
            await r.all_let_go()
            assert [len(p.of(PrefillRequest)), len(d.of(Reserve))] == [1, 1]
            assert not p.of(Cancel)
            assert not d.of(Cancel)

    run(work())


def test_a_finished_request_is_logged_once_with_the_time_of_each_phase() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill(), await r.decode()
            await read(await r.submit(max_tokens=5))
            await r.nothing_left()
            (outcome,) = r.counts.outcomes
            assert (outcome.kind, outcome.path, outcome.num_output_tokens) == ("finished", "split", 5)
            assert set(outcome.spent_s) == {"queue", "prefill", "transfer", "decode"}
            assert r.counts.paths == ["split"]

    run(work())


def test_three_choices_share_one_prefill_and_end_each_by_itself() -> None:
    async def work() -> None:
        async with rig() as r:
            p, d = await r.prefill(), await r.decode()
            d.habits.end_at = {0: 3, 1: 6}
            stream = await r.submit(max_tokens=8, n=3)
            reader = Reader(stream, 3)
            assert await reader.all() == [tokens(0, 3), tokens(1, 6), tokens(2, 8)]
            assert reader.ends == {0: "stop", 1: "stop", 2: "length"}
            await r.all_let_go()
            (request,) = p.of(PrefillRequest)
            assert isinstance(request, PrefillRequest)
            assert [tail.choice for tail in request.tails] == [0, 1, 2]
            (reserve,) = d.of(Reserve)
            assert isinstance(reserve, Reserve)
            assert reserve.demand.choices == (0, 1, 2)

    run(work())


def test_one_token_is_made_without_a_decode_worker() -> None:
    async def work() -> None:
        async with rig() as r:
            p, d = await r.prefill(), await r.decode()
            stream = await r.submit(max_tokens=1)
            assert await read(stream) == [tokens(0, 1)]
            await r.all_let_go()
            (request,) = p.of(PrefillRequest)
            assert isinstance(request, PrefillRequest)
            assert request.decode == Peer()
            assert not d.heard

    run(work())


def test_a_choice_that_ends_at_its_first_token_is_finished_by_the_prefill_worker() -> None:
    async def work() -> None:
        async with rig() as r:
            p, d = await r.prefill(), await r.decode()
            p.habits.end_at = {0: 1}
            assert await read(await r.submit(max_tokens=8)) == [tokens(0, 1)]
            await r.all_let_go()
            await r.until(lambda: not d.held)
            assert len(d.of(Finished)) == 1
            assert not d.of(Cancel)

    run(work())


def test_one_of_two_choices_may_end_at_the_first_token() -> None:
    async def work() -> None:
        async with rig() as r:
            p, _ = await r.prefill(), await r.decode()
            p.habits.end_at = {1: 1}
            assert await read(await r.submit(max_tokens=4, n=2), 2) == [tokens(0, 4), tokens(1, 1)]
            await r.all_let_go()

    run(work())


def test_without_a_prefill_worker_a_short_prompt_falls_back_to_the_decode_worker() -> None:
    async def work() -> None:
        async with rig() as r:
            d = await r.decode(local_prefill_tokens=64)
            stream = await r.submit(max_tokens=4, prompt=64)
            assert stream.path == "fallback"
            assert await read(stream) == [tokens(0, 4)]
            await r.all_let_go()
            (request,) = d.of(PrefillRequest)
            assert isinstance(request, PrefillRequest)
            assert request.prefill == request.decode == d.me
            assert not d.of(Reserve)
            assert r.dispatcher.ready() == ("degraded", ["fallback"], 0, 1)

    run(work())


def test_a_prompt_over_the_local_budget_finds_no_worker() -> None:
    async def work() -> None:
        async with rig() as r:
            d = await r.decode(local_prefill_tokens=64)
            with pytest.raises(GatewayError) as caught:
                await r.submit(prompt=65)
            assert (caught.value.status, caught.value.code) == (503, "no_worker")
            assert caught.value.retry_after_s
            assert not d.heard
            assert r.counts.outcomes[0].kind == "refused"

    run(work())


def test_a_decode_worker_without_a_limit_serves_both() -> None:
    async def work() -> None:
        async with rig() as r:
            await r.decode(local_prefill_tokens=-1)
            stream = await r.submit(max_tokens=4, n=2, prompt=2000)
            assert await read(stream, 2) == [tokens(0, 4), tokens(1, 4)]
            assert stream.path == "both"
            await r.all_let_go()
            assert r.dispatcher.ready() == ("ok", ["both"], 0, 1)

    run(work())


def test_readiness_names_the_path() -> None:
    async def work() -> None:
        async with rig() as r:
            assert r.dispatcher.ready() == ("unavailable", [], 0, 0)
            await r.prefill()
            assert r.dispatcher.ready() == ("unavailable", [], 1, 0)
            await r.decode("d1", fingerprint="other")
            assert r.dispatcher.ready()[0] == "unavailable"
            await r.decode("d2")
            assert r.dispatcher.ready() == ("ok", ["split"], 1, 2)

    run(work())


def test_a_prompt_over_every_context_is_refused_at_once() -> None:
    async def work() -> None:
        async with rig() as r:
            p, d = await r.prefill(max_model_len=100), await r.decode(max_model_len=100)
            with pytest.raises(GatewayError) as caught:
                await r.submit(max_tokens=61, prompt=40)
            assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
            assert not p.heard
            assert not d.heard
            await r.nothing_left()

    run(work())


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
            acks: list[Ack] = []
            known = d.postbox._handlers[Ack]
            d.postbox._handlers[Ack] = lambda sender, ack: (acks.append(ack), known(sender, ack))
            streams = [await r.submit(max_tokens=4) for _ in range(10)]
            for stream in streams:
                await read(stream)
            await r.all_let_go()
            assert len(acks) <= 2
            assert {item.next_index for item in acks[-1].items} == {5}

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


def test_a_worker_that_sends_impossible_tokens_fails_the_request_alone() -> None:
    async def work() -> None:
        async with rig() as r:
            p, _ = await r.prefill(), await r.decode()
            p.habits.stall_prefill = True
            stream = await r.submit(max_tokens=3)
            event = TokenEvent(stream.request_id, 1, 0, 0, (1, 2, 3, 4), (), "", -1, -1, 0)
            p.postbox.send(r.postbox.me, TokenEvents("prefill", (event,)))
            assert (await Reader(stream).failed()).status == 500
            await r.nothing_left()
            assert r.counts.outcomes[0].kind == "failed"

    run(work())
