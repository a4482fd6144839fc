"""Public bug reports, replayed: limits, stops and counts over a whole request, whoever makes its tokens."""

from __future__ import annotations

import asyncio

import pytest

from protocol.messages import Cancel, PrefillRequest, Reserve, Tail
from tests.support.dispatch_rig import run
from tests.support.front_rig import all_done, front, say, text_of


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [1, 2])
def test_one_token_is_one_token_and_two_are_two(max_tokens: int, stream: bool) -> None:
    """Replays dynamo #3443."""

    async def work() -> None:
        async with front() as f:
            _, d = await f.prefill(), await f.decode()
            options = {"stream_options": {"include_usage": True}} if stream else {}
            call = await f.chat(max_tokens=max_tokens, stream=stream, **options).done()
            if stream:
                usage = call.events[-1]["usage"]
                said = "".join(c["delta"].get("content", "") for e in call.events for c in e["choices"])
                ends = [c["finish_reason"] for e in call.events for c in e["choices"] if c["finish_reason"]]
            else:
                usage, said = call.json["usage"], call.text
                ends = [call.json["choices"][0]["finish_reason"]]
            assert (usage["completion_tokens"], said, ends) == (max_tokens, text_of(max_tokens), ["length"])
            assert bool(d.of(Reserve)) == (max_tokens == 2)
            await f.nothing_left()

    run(work())


def test_the_callers_minimum_is_no_matter_of_the_prefill_leg() -> None:
    """Replays dynamo #11408: both legs get the request's own limits."""

    async def work() -> None:
        async with front() as f:
            p, _ = await f.prefill(), await f.decode()
            assert (await f.chat(min_tokens=5, max_tokens=10).done()).status == 200
            (request,) = p.of(PrefillRequest)
            assert isinstance(request, PrefillRequest)
            assert (request.sampling.min_tokens, request.sampling.max_tokens) == (5, 10)

    run(work())


@pytest.mark.parametrize("stream", [False, True])
def test_after_a_move_max_tokens_goes_on_counting(stream: bool) -> None:
    """Replays dynamo #2038: 200 tokens, the decode worker is killed after about 60."""

    async def work() -> None:
        async with front() as f:
            p = await f.prefill()
            d1, d2 = await f.decode("d1"), await f.decode("d2", free_blocks=900)
            d1.habits.stall_decode_at = 60
            call = f.chat(max_tokens=200, stream=stream)
            await f.rig.until(lambda: d1.held and f.rig.counts.paths)
            await asyncio.sleep(1.0)
            d1.die()
            await call.done()
            again = p.of(PrefillRequest)[-1]
            assert isinstance(again, PrefillRequest)
            assert again.tails == (Tail(0, tuple(say(0, index) for index in range(60))),)
            assert again.sampling.max_tokens == 200
            if stream:
                said = "".join(c["delta"].get("content", "") for e in call.events for c in e["choices"])
                assert len({e["id"] for e in call.events}) == 1
            else:
                said = call.text
                assert call.json["usage"]["completion_tokens"] == 200
            assert said == text_of(200)
            assert d2.of(Reserve)
            await f.nothing_left()

    run(work())


def test_preempted_requests_come_back_whole_and_count_right() -> None:
    """Replays vllm #16832, vllm #3032: what was made before goes along as the tail, apart from the prompt."""

    async def work() -> None:
        async with front() as f:
            p, d1 = await f.prefill(), await f.decode("d1")
            await f.decode("d2", free_blocks=900)
            d1.habits.stall_decode_at = 30
            calls = [f.chat(max_tokens=100, frequency_penalty=1.0) for _ in range(2)]
            await asyncio.sleep(1.0)
            d1.fail("preempted")
            await all_done(calls)
            for call in calls:
                assert (call.json["usage"]["completion_tokens"], call.text) == (100, text_of(100))
            num_prompt = calls[0].json["usage"]["prompt_tokens"]
            sent = [m for m in p.of(PrefillRequest) if isinstance(m, PrefillRequest)]
            assert {len(m.prompt_ids) for m in sent} == {num_prompt}
            assert f.rig.counts.moves
            assert {code for _, code in f.rig.counts.moves} == {"preempted"}
            await f.nothing_left()

    run(work())


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_work_of_the_decode_worker(stream: bool) -> None:
    """Replays vllm #57052: text is made in another process than tokens, and the stop goes back to their maker."""

    async def work() -> None:
        async with front() as f:
            _, d = await f.prefill(), await f.decode()
            d.habits.token_s = 0.05
            call = await f.chat(max_tokens=1000, stop=["Paris"], stream=stream).done()
            if stream:
                said = "".join(c["delta"].get("content", "") for e in call.events for c in e["choices"])
            else:
                said = call.text
                assert call.json["usage"]["completion_tokens"] < 100
            assert said == "The capital of France is "
            await f.nothing_left()
            assert d.of(Cancel)
            assert not d.held

    run(work())


def test_each_choice_ends_once_and_when_it_ends() -> None:
    """Replays sglang #8417 (exactly one finish reason each), openai-python #434 (not all at the end)."""

    async def work() -> None:
        async with front() as f:
            _, d = await f.prefill(), await f.decode()
            d.habits.end_at = {1: 2}
            d.habits.token_s = 0.05
            call = await f.chat(n=3, max_tokens=9, stream=True).done()
            ends = [
                (place, c["index"]) for place, e in enumerate(call.events) for c in e["choices"] if c["finish_reason"]
            ]
            assert sorted(index for _, index in ends) == [0, 1, 2]
            first, index = min(ends)
            assert index == 1
            assert first < len(call.events) - 6
            await f.nothing_left()

    run(work())
