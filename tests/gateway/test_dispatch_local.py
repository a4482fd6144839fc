"""The last prefill worker is gone: decode workers compute what is within their budget."""

from __future__ import annotations

from protocol.messages import (
    PrefillRequest,
)
from tests.support.dispatch_rig import Reader, rig, run, tokens


def test_no_prefill_worker_left_means_local_prefill_of_prompt_and_tail() -> None:
    async def work() -> None:
        async with rig() as r:
            p = await r.prefill()
            d1 = await r.decode("d1", local_prefill_tokens=100)
            p.habits.stall_handover = True
            stream = await r.submit(max_tokens=6)
            reader = Reader(stream)
            await reader.until(1)
            p.die()
            assert await reader.all() == [tokens(0, 6)]
            (local,) = d1.of(PrefillRequest)
            assert isinstance(local, PrefillRequest)
            assert local.prefill == local.decode == d1.me
            assert stream.path == "split"
            assert r.counts.paths == ["split", "fallback"]
            await r.all_let_go()

    run(work())


def test_a_prompt_that_was_never_handed_over_counts_whole_against_the_local_budget() -> None:
    async def work() -> None:
        async with rig() as r:
            p = await r.prefill()
            d = await r.decode("d1", local_prefill_tokens=100)
            p.habits.stall_handover = True
            reader = Reader(await r.submit(max_tokens=6, prompt=160))
            await reader.until(1)
            p.die()
            assert (await reader.failed()).code == "no_worker"
            assert not d.of(PrefillRequest)
            await r.nothing_left()

    run(work())
