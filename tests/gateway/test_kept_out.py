"""The record of workers that failed: pauses, probes, and who is let back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.kept_out import FIRST_PAUSE_S, LONGEST_PAUSE_S, KeptOut, Standing
from gateway.outcome import DispatchMetrics
from protocol.messages import Peer
from tests.support.dispatch_rig import run

P = Peer("p", "1")


def on_virtual_time(check: Callable[[KeptOut], object]) -> None:
    async def work() -> None:
        result = check(KeptOut(DispatchMetrics()))
        if asyncio.iscoroutine(result):
            await result

    run(work())


def test_one_failure_keeps_a_worker_out_for_a_second_and_a_probe_lets_it_back() -> None:
    async def check(out: KeptOut) -> None:
        assert out.standing(P) is Standing.IN
        out.failed(P, "prefill", "r1", "engine_failed")
        assert out.standing(P) is Standing.OUT
        await asyncio.sleep(FIRST_PAUSE_S)
        assert out.standing(P) is Standing.DUE
        out.placed(P, "r2")
        assert out.standing(P) is Standing.PROBED
        assert out.num_probes == 1
        out.worked(P, "r1")
        assert out.standing(P) is Standing.PROBED
        out.worked(P, "r2")
        assert out.standing(P) is Standing.IN
        assert not out.absences()

    on_virtual_time(check)


def test_each_failed_probe_doubles_the_pause_up_to_half_a_minute() -> None:
    async def check(out: KeptOut) -> None:
        out.failed(P, "prefill", "r", "engine_failed")
        pauses = []
        for _ in range(7):
            (absence,) = out.absences()
            pauses.append(absence.left_s)
            await asyncio.sleep(absence.left_s)
            out.placed(P, "probe")
            out.failed(P, "prefill", "probe", "engine_failed")
        assert pauses == [1, 2, 4, 8, 16, 30, 30]

    on_virtual_time(check)


def test_failures_of_requests_that_were_there_before_count_once() -> None:
    async def check(out: KeptOut) -> None:
        for number in range(16):
            out.failed(P, "prefill", f"r{number}", "engine_failed")
        assert out.absences()[0].left_s == FIRST_PAUSE_S

    on_virtual_time(check)


def test_who_fails_again_soon_after_it_was_let_back_goes_on_where_its_pauses_were() -> None:
    async def check(out: KeptOut) -> None:
        out.failed(P, "prefill", "r", "engine_failed")
        await asyncio.sleep(1.0)
        out.placed(P, "probe")
        out.worked(P, "probe")
        out.failed(P, "prefill", "r2", "engine_failed")
        assert out.absences()[0].left_s == 2 * FIRST_PAUSE_S
        await asyncio.sleep(2.0)
        out.placed(P, "probe2")
        out.worked(P, "probe2")
        await asyncio.sleep(LONGEST_PAUSE_S)
        out.failed(P, "prefill", "r3", "engine_failed")
        assert out.absences()[0].left_s == FIRST_PAUSE_S

    on_virtual_time(check)


def test_a_probe_that_ends_without_a_verdict_leaves_its_place_to_another() -> None:
    async def check(out: KeptOut) -> None:
        out.failed(P, "prefill", "r", "engine_failed")
        await asyncio.sleep(1.0)
        out.placed(P, "r2")
        out.left(P, "r2")
        assert out.standing(P) is Standing.DUE
        assert out.num_probes == 0

    on_virtual_time(check)


def test_a_new_life_has_a_clean_record() -> None:
    def check(out: KeptOut) -> None:
        out.failed(P, "prefill", "r", "engine_failed")
        out.forget(P)
        assert out.standing(P) is Standing.IN
        assert out.standing(Peer("p", "2")) is Standing.IN

    on_virtual_time(check)
