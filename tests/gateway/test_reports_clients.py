"""Public bug reports, replayed: clients that leave, read nothing, or share a name."""

from __future__ import annotations

import asyncio
import random

import pytest

from gateway.http_settings import HttpSettings
from protocol.messages import Cancel
from tests.support.dispatch_rig import run
from tests.support.front_rig import all_done, front, text_of


@pytest.mark.parametrize("stream", [False, True])
def test_generation_stops_when_its_client_has_left(stream: bool) -> None:
    """Replays vllm #9428 (unstreamed requests went on to their end), 20 at once."""

    async def work() -> None:
        async with front() as f:
            p, d = await f.prefill(), await f.decode(max_num_seqs=64)
            d.habits.token_s = 0.05
            calls = [f.chat(max_tokens=4000, stream=stream) for _ in range(20)]
            await asyncio.sleep(0.3)
            for call in calls:
                call.leave()
            await all_done(calls)
            began = asyncio.get_running_loop().time()
            await f.nothing_left()
            assert asyncio.get_running_loop().time() - began < 1.0
            assert f.outcomes == ["cancelled"] * 20
            assert not p.held
            assert not d.held

    run(work())


@pytest.mark.parametrize("seed", range(4))
def test_requests_cancelled_around_the_end_of_their_prefill_leave_nothing(seed: int) -> None:
    """Replays vllm #29906: 50 requests, each cancelled at a random moment around its prefill's end, and again."""

    async def work() -> None:
        async with front() as f:
            p, d = await f.prefill(), await f.decode(max_num_seqs=64)
            dice = random.Random(seed)
            d.habits.token_s = 0.002
            f.rig.hub.delay = lambda subject, frame: dice.choice([0.0, 0.001, 0.004])

            async def once() -> None:
                call = f.chat(max_tokens=300, stream=dice.random() < 0.5)
                await asyncio.sleep(dice.random() * 0.02)
                call.leave()
                await call.done()

            async def twice() -> None:
                await once()
                await once()

            await asyncio.gather(*(twice() for _ in range(50)))
            await f.nothing_left()
            assert set(f.outcomes) <= {"cancelled", "finished"}
            assert not p.held
            assert not d.held
            f.rig.hub.delay = None
            assert (await f.chat().done()).text == text_of(8), "alive"

    run(work())


def test_late_words_about_requests_that_are_gone_break_nothing() -> None:
    """Replays LMCache #4185: 200 streams cancelled at random moments; their late events meet no request."""

    async def work() -> None:
        async with front() as f:
            await f.prefill(), await f.decode(max_num_seqs=512)
            dice = random.Random(5)
            f.rig.hub.delay = lambda subject, frame: dice.choice([0.0, 0.0, 0.05, 0.3])

            async def one() -> None:
                call = f.chat(max_tokens=50, stream=True)
                await asyncio.sleep(dice.random() * 0.4)
                call.leave()
                await call.done()

            await asyncio.gather(*(one() for _ in range(200)))
            await f.nothing_left()
            f.rig.hub.delay = None
            assert f.rig.bus.counters.handler_errors == 0
            assert (await f.chat().done()).text == text_of(8)

    run(work())


def test_slow_readers_hold_a_bounded_number_of_pieces_and_are_ended() -> None:
    """Replays starlette #1012: readers that take nothing, beside one that reads."""

    async def work() -> None:
        async with front(settings=HttpSettings(write_timeout_s=5.0)) as f:
            _, d = await f.prefill(), await f.decode(max_num_seqs=64)
            d.habits.token_s = 0.01
            slow = [f.chat(max_tokens=1500, stream=True) for _ in range(3)]
            await f.rig.until(lambda: all(call.sent for call in slow))
            for call in slow:
                call.reads.clear()
            normal = f.chat(max_tokens=100, stream=True)
            began = asyncio.get_running_loop().time()
            await normal.done()
            assert asyncio.get_running_loop().time() - began < 3.0
            await all_done(slow)
            await f.nothing_left()
            assert f.outcomes.count("cancelled") == 3
            assert len(d.of(Cancel)) == 3

    run(work())


def test_two_requests_with_one_client_given_id_are_never_mixed() -> None:
    """Replays vllm #10583: at once, after the first has ended, with a cancelled one's id, and one of 8 kB."""

    async def work() -> None:
        async with front() as f:
            _, d = await f.prefill(), await f.decode()
            d.habits.token_s = 0.02
            same = {"X-Request-Id": "mine"}
            calls = [f.chat(same, max_tokens=count) for count in (5, 9)]
            await all_done(calls)
            assert [call.text for call in calls] == [text_of(5), text_of(9)]
            assert len({call.headers["x-kvferry-request-id"] for call in calls}) == 2
            gone = f.chat(same, max_tokens=500)
            await asyncio.sleep(0.1)
            gone.leave()
            await gone.done()
            assert (await f.chat(same, max_tokens=7).done()).text == text_of(7)
            assert (await f.chat({"X-Request-Id": "x" * 8192}).done()).status == 200
            await f.nothing_left()

    run(work())
