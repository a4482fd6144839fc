"""Public bug reports, replayed: workers that refuse, fail, die, come and go."""

from __future__ import annotations

import asyncio

from gateway.http_settings import HttpSettings
from protocol.messages import PrefillRequest
from tests.support.dispatch_rig import Reader, run
from tests.support.front_rig import all_done, front, text_of


def test_a_prompt_that_does_not_fit_the_prefill_worker_is_an_error_and_never_text() -> None:
    """Replays sglang #30233."""

    async def work() -> None:
        async with front() as f:
            p, d = await f.prefill(), await f.decode()
            p.habits.refuse = "never_fits"
            call = await f.chat().done()
            assert (call.status, call.error["code"]) == (400, "never_fits")
            await f.nothing_left()
            assert not p.held
            assert not d.held

    run(work())


def test_a_request_that_is_given_back_is_a_new_hand_over() -> None:
    """Replays sglang #6857, vllm PR53250: it waited for a transfer that had been used up."""

    async def work() -> None:
        async with front() as f:
            p, d = await f.prefill(), await f.decode()
            d.habits.stall_decode_at = 50
            calls = [f.chat(max_tokens=200) for _ in range(8)]
            await asyncio.sleep(1.0)
            d.habits.stall_decode_at = 1 << 30
            d.fail("preempted")
            await all_done(calls)
            assert [call.text for call in calls] == [text_of(200)] * 8
            attempts = [m.attempt for m in p.of(PrefillRequest) if isinstance(m, PrefillRequest)]
            assert sorted(set(attempts)) == [1, 2]
            await f.nothing_left()

    run(work())


def test_a_prefill_worker_killed_in_mid_transfer_holds_up_nobody() -> None:
    """Replays vllm #35943: the decode side waited for ever."""

    async def work() -> None:
        async with front() as f:
            p1, p2 = await f.prefill("p1"), await f.prefill("p2", waiting_tokens=50)
            _ = await f.decode()
            p1.habits.stall_handover = True
            call = f.chat(max_tokens=20)
            await f.rig.until(lambda: p1.held)
            await asyncio.sleep(0.5)
            p1.habits.beats = False
            p1.stop_working()
            began = asyncio.get_running_loop().time()
            assert (await call.done()).text == text_of(20)
            assert asyncio.get_running_loop().time() - began < 8.0
            assert p2.of(PrefillRequest)
            await f.nothing_left()

    run(work())


def test_a_long_prompt_goes_through_a_small_broker() -> None:
    """Replays dynamo #9734: over the broker's payload limit it came back as a timeout."""

    async def work() -> None:
        async with front(max_payload=64 << 10) as f:
            p, _ = await f.prefill(max_model_len=300_000), await f.decode(max_model_len=300_000, total_blocks=20_000)
            await f.rig.until(lambda: f.rig.dispatcher.health().ready)
            f.rig.workers[1].beat(free_blocks=20_000)
            reader = Reader(await f.rig.submit(prompt=250_000, max_tokens=4))
            assert len((await reader.all())[0]) == 4
            (request,) = p.of(PrefillRequest)
            assert isinstance(request, PrefillRequest)
            assert len(request.prompt_ids) == 250_000
            await f.nothing_left()

    run(work())


def test_a_body_that_is_too_large_says_so_at_once() -> None:
    """Replays dynamo #9734: 413, not a timeout."""

    async def work() -> None:
        async with front(settings=HttpSettings(max_body_bytes=1 << 20)) as f:
            p = await f.prefill()
            await f.decode()
            call = await f.chat(messages=[{"role": "user", "content": "x" * (2 << 20)}]).done()
            assert (call.status, call.error["code"]) == (413, "request_too_large")
            assert not p.heard

    run(work())
