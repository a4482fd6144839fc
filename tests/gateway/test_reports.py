"""Public bug reports, replayed: statuses and overload. Each test names its report."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from protocol.messages import PrefillRequest, Reserve
from tests.support.dispatch_rig import QUICK, run
from tests.support.front_rig import Call, all_done, front, text_of


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_over_the_context_is_a_400_before_any_event(stream: bool) -> None:
    """Replays llama.cpp #14566."""

    async def work() -> None:
        async with front(max_model_len=256) as f:
            p, d = await f.prefill(), await f.decode()
            call = await f.chat(messages=[{"role": "user", "content": "x y " * 256}], stream=stream).done()
            assert (call.status, call.error["code"]) == (400, "context_length_exceeded")
            assert not p.heard
            assert not d.heard

    run(work())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"seed": 2**64}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"seed": "7"}, "seed"),
        ({"logit_bias": {"10000000000": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 500}}, "logit_bias"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_a_value_that_breaks_an_engine_is_a_400_and_streams_beside_it_go_on(fields: dict[str, Any], param: str) -> None:
    """Replays vllm #4529 (seed 2**64), vllm #16529 and sglang #7670 (logit_bias)."""

    async def work() -> None:
        async with front() as f:
            p, d = await f.prefill(), await f.decode()
            d.habits.token_s = 0.1
            beside = [f.chat(stream=True), f.chat(stream=True)]
            await f.rig.until(lambda: len(p.of(PrefillRequest)) == 2)
            call = await f.chat(**fields).done()
            assert (call.status, call.error["param"]) == (400, param)
            await all_done(beside)
            assert all(each.events[-1]["choices"][0]["finish_reason"] == "length" for each in beside)
            assert len(p.of(PrefillRequest)) == 2
            await f.nothing_left()

    run(work())


@pytest.mark.parametrize("seed", [0, -1, None, 2**64 - 1, -(2**63)])
def test_every_seed_of_64_bits_is_taken(seed: int | None) -> None:
    """Replays vllm #4529."""

    async def work() -> None:
        async with front() as f:
            await f.prefill(), await f.decode()
            assert (await f.chat(seed=seed).done()).status == 200

    run(work())


@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_model_is_a_404_and_no_200_with_an_error_in_it(stream: bool) -> None:
    """Replays worker-vllm #57."""

    async def work() -> None:
        async with front() as f:
            p = await f.prefill()
            await f.decode()
            call = await f.chat(model="no-such", stream=stream).done()
            assert (call.status, call.error["code"]) == (404, "model_not_found")
            assert not p.heard

    run(work())


@pytest.mark.parametrize(
    "body",
    [
        *(b"not json", b"", b"[]", b"null", b"{}", b"\xff\xfe", b"[" * 100_000),
        *(b'{"messages": []}', b'{"messages": "hi"}', b'\xef\xbb\xbf{"messages": []}'),
    ],
)
def test_whatever_is_no_request_gets_one_shape_of_error(body: bytes) -> None:
    """Replays tt-inference-server #2771."""

    async def work() -> None:
        async with front() as f:
            call = await Call(f.app, "POST", "/v1/chat/completions", body, {}).done()
            assert call.status == 400
            assert set(call.error) == {"message", "type", "param", "code"}
            assert call.error["type"] == "invalid_request_error"

    run(work())


@pytest.mark.parametrize("stream", [False, True])
def test_two_mebibytes_of_text_or_tools_are_refused_at_once(stream: bool) -> None:
    """Replays dynamo #9734: what was too large came back as a timeout."""
    text = "word " * ((2 << 20) // 5)
    tools = [
        {"type": "function", "function": {"name": f"f{number}", "description": "word " * 2000}} for number in range(210)
    ]
    user = [{"role": "user", "content": "hello"}]

    async def work() -> None:
        async with front() as f:
            p, _ = await f.prefill(), await f.decode()
            for fields in ({"messages": [{"role": "user", "content": text}]}, {"messages": user, "tools": tools}):
                call = await f.chat(**fields, stream=stream).done()
                assert (call.status, call.error["code"]) == (400, "context_length_exceeded")
                assert "tokens" in call.error["message"]
            assert not p.heard
            assert (await f.chat().done()).status == 200

    run(work())


def test_fields_that_ask_for_nothing_change_nothing() -> None:
    """Replays langchain, as told in vllm #1045."""

    async def work() -> None:
        async with front() as f:
            await f.prefill(), await f.decode()
            names = [
                "logit_bias",
                "stop",
                "tools",
                "functions",
                "response_format",
                "stream_options",
                "user",
                "metadata",
            ]
            for empty in ({}, None):
                call = await f.chat(**dict.fromkeys(names, empty), unknown_field=1).done()
                assert (call.status, call.text) == (200, text_of(8))

    run(work())


def test_sixty_four_at_once_all_finish() -> None:
    """Replays sglang #9266, sglang #23272: at high concurrency most transfers failed."""

    async def work() -> None:
        async with front() as f:
            for number in (1, 2):
                await f.prefill(f"p{number}")
                d = await f.decode(f"d{number}")
                d.habits.token_s = 0.02
            calls = [f.chat(max_tokens=10 + number % 7) for number in range(64)]
            await all_done(calls)
            assert {call.status for call in calls} == {200}
            assert [call.text for call in calls] == [text_of(10 + number % 7) for number in range(64)]
            assert not f.rig.counts.moves
            await f.nothing_left()

    run(work())


def test_overload_is_a_429_at_once_and_not_a_timeout_for_all() -> None:
    """Replays sglang #10110: under load every request ended at the same 300 s timeout."""

    async def work() -> None:
        async with front(replace(QUICK, max_waiting=10, queue_s=60.0)) as f:
            _, d = await f.prefill(), await f.decode()
            d.habits.token_s = 0.1
            d.beat(free_blocks=0)
            await f.rig.until(lambda: f.rig.roster.workers("decode")[0][1].free_blocks == 0)
            calls = [f.chat() for _ in range(30)]
            await f.rig.until(lambda: sum(call.task.done() for call in calls) == 20)
            refused = [call for call in calls if call.task.done()]
            for call in refused:
                assert (call.status, call.error["code"]) == (429, "queue_full")
                assert 1 <= int(call.headers["retry-after"]) <= 60
            d.beat(free_blocks=1000)
            await all_done(calls)
            assert sorted(call.status for call in calls) == [200] * 10 + [429] * 20
            await f.nothing_left()

    run(work())


def test_nothing_waits_without_an_outcome() -> None:
    """Replays vllm #55870, sglang PR29482: a leg that says nothing hung for 480 to 1800 seconds."""

    async def work() -> None:
        async with front() as f:
            p1, p2 = await f.prefill("p1"), await f.prefill("p2", waiting_tokens=50)
            d1, _ = await f.decode("d1"), await f.decode("d2", free_blocks=900)
            p1.habits.deaf_to = d1.habits.deaf_to = (PrefillRequest, Reserve)
            began = asyncio.get_running_loop().time()
            call = await f.chat(max_tokens=12).done()
            assert call.text == text_of(12)
            assert asyncio.get_running_loop().time() - began < 30.0
            assert p2.of(PrefillRequest)
            await f.rig.nothing_left()

    run(work())


def test_a_status_keeps_the_meaning_of_the_phase_that_failed() -> None:
    """Replays dynamo PR14063, PR14661: prefill's 400 came out as a 500."""

    async def work() -> None:
        for code, status in (("bad_request", 400), ("never_fits", 400), ("context_length_exceeded", 400)):
            async with front() as f:
                p = await f.prefill()
                await f.decode()
                p.habits.refuse = code
                call = await f.chat().done()
                assert (call.status, call.error["code"]) == (status, code)
                await f.nothing_left()

    run(work())


def test_an_error_never_comes_as_a_finish_reason() -> None:
    """Replays dynamo #8549, smg #2382, sglang #25388: 200 with a finish reason "error" or "abort"."""

    async def work() -> None:
        async with front(replace(QUICK, max_attempts=1)) as f:
            _, d = await f.prefill(), await f.decode()
            d.habits.stall_decode_at = 4
            whole, streamed = f.chat(), f.chat(stream=True)
            await asyncio.sleep(1.0)
            d.fail("engine_failed")
            await all_done([whole, streamed])
            assert (whole.status, whole.error["code"]) == (500, "engine_failed")
            assert streamed.status == 200
            assert streamed.events[-1]["error"]["code"] == "engine_failed"
            assert not [c for e in streamed.events for c in e.get("choices", ()) if c["finish_reason"]]
            await f.nothing_left()

    run(work())


def test_cached_tokens_are_those_whose_compute_was_skipped_at_prefill() -> None:
    """Replays vllm #43370, #44607, #47136, sglang #25972: under split prefill they were about the whole prompt."""

    async def work() -> None:
        async with front() as f:
            await f.prefill(), await f.decode()
            call = await f.chat(max_tokens=5).done()
            usage = call.json["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == 20, (
                "what the prefill worker said, not the decode worker"
            )

    run(work())
