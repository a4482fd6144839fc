"""The undisturbed ways through the dispatcher."""

from __future__ import annotations

import pytest

from gateway.errors import GatewayError
from protocol.messages import (
    Cancel,
    Finished,
    Peer,
    PrefillRequest,
    Reserve,
)
from tests.support.dispatch_rig import Reader, Rig, read, rig, run, tokens


def paths(r: Rig) -> tuple[str, tuple[str, ...], int, int]:
    health = r.dispatcher.health()
    return health.status, health.paths, health.num_prefill, health.num_decode


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
            assert paths(r) == ("degraded", ("fallback",), 0, 1)

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
            assert paths(r) == ("ok", ("both",), 0, 1)

    run(work())


def test_readiness_names_the_path() -> None:
    async def work() -> None:
        async with rig() as r:
            assert paths(r) == ("unavailable", (), 0, 0)
            await r.prefill()
            assert paths(r) == ("unavailable", (), 1, 0)
            await r.decode("d1", fingerprint="other")
            assert paths(r)[0] == "unavailable"
            await r.decode("d2")
            assert paths(r) == ("ok", ("split",), 1, 2)

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
