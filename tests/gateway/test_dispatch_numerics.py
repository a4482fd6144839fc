"""A moved request prefers workers whose tokens come out the same, bit for bit."""

from __future__ import annotations

import logging

import pytest

from protocol.messages import Reserve
from tests.support.dispatch_rig import Reader, rig, run, tokens


def changed(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [each.__dict__["fields"] for each in caplog.records if each.getMessage() == "numerics_changed"]


def test_a_moved_request_goes_to_equal_numerics_though_others_are_less_loaded(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill(numerics="avx512")
            d1 = await r.decode("d1", numerics="avx512")
            d1.habits.stall_decode_at = 3
            reader = Reader(await r.submit(max_tokens=6))
            await reader.until(3)
            other = await r.decode("d2", numerics="avx2")
            alike = await r.decode("d3", numerics="avx512", free_blocks=500)
            d1.die()
            assert await reader.all() == [tokens(0, 6)]
            assert alike.of(Reserve)
            assert not other.heard

    with caplog.at_level(logging.WARNING):
        run(work())
    assert not changed(caplog)


def test_when_it_could_not_one_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with rig() as r:
            await r.prefill(numerics="avx512")
            d1 = await r.decode("d1", numerics="avx512")
            await r.decode("d2", numerics="avx2", free_blocks=500)
            d1.habits.stall_decode_at = 3
            reader = Reader(await r.submit(max_tokens=6))
            await reader.until(3)
            d1.die()
            assert await reader.all() == [tokens(0, 6)]

    with caplog.at_level(logging.WARNING):
        run(work())
    (line,) = changed(caplog)
    assert (line["worker"], line["numerics"], line["before"]) == ("d2", "avx2", ["avx512"])


def test_before_any_token_was_made_numerics_do_not_matter(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with rig() as r:
            p1 = await r.prefill("p1", numerics="avx512")
            await r.prefill("p2", numerics="avx2", waiting_tokens=9)
            await r.decode(numerics="avx2")
            p1.habits.stall_prefill = True
            reader = Reader(await r.submit(max_tokens=6))
            await r.until(lambda: p1.held)
            p1.die()
            assert await reader.all() == [tokens(0, 6)]

    with caplog.at_level(logging.WARNING):
        run(work())
    assert not changed(caplog)
