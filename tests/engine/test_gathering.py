"""Prompts of one burst are waited for, a few milliseconds; nobody else waits for anybody."""

from collections.abc import Callable

import pytest

from engine.api import NewTokens, Prefill, Shutdown
from engine.gathering import LONGEST, MOST_GAP_S, Gathering
from engine.loop import run_loop
from engine.step_clock import StepClock
from tests.support.engine_rig import GREEDY, Rig, prompt, tails


class Time:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def gathering(time: Time) -> Gathering:
    """Of an engine whose steps take 200 ms, which has never heard of a prompt."""
    clock = StepClock()
    clock.step_ms = 200.0
    return Gathering(clock, time)


def come(gathering: Gathering, time: Time, *gaps_s: float) -> None:
    for gap_s in gaps_s:
        time.s += gap_s
        gathering.arrived()


def burst(gathering: Gathering, time: Time) -> None:
    come(gathering, time, *[0.002] * 12)
    gathering.begun()


def test_who_asks_alone_never_waits(gathering: Gathering, time: Time) -> None:
    for _ in range(20):
        come(gathering, time, 0.5)
        assert gathering.wait_s() == 0.0
        gathering.begun()


def test_after_a_burst_the_first_of_the_next_is_not_computed_alone(gathering: Gathering, time: Time) -> None:
    burst(gathering, time)
    come(gathering, time, 1.0)
    assert gathering.wait_s() == pytest.approx(MOST_GAP_S)
    come(gathering, time, 0.01)
    assert gathering.wait_s() == pytest.approx(MOST_GAP_S), "it waits for one after the second too"
    time.s += MOST_GAP_S
    assert gathering.wait_s() == 0.0, "the burst is over"


def test_nobody_is_put_off_for_longer_than_some_gaps(gathering: Gathering, time: Time) -> None:
    burst(gathering, time)
    come(gathering, time, 1.0, *[0.01] * 20)
    assert gathering.wait_s() == 0.0
    assert time.s - 101.0 > LONGEST * MOST_GAP_S


def test_what_is_computed_already_waits_for_nobody(gathering: Gathering, time: Time) -> None:
    burst(gathering, time)
    assert gathering.wait_s() == 0.0


def test_bursts_that_are_no_more_are_forgotten(gathering: Gathering, time: Time) -> None:
    burst(gathering, time)
    waits = []
    for _ in range(10):
        come(gathering, time, 0.3)
        waits.append(gathering.wait_s())
        gathering.begun()
    assert waits[0] > 0
    assert not any(waits[5:])


def test_where_steps_are_short_so_are_waits(time: Time) -> None:
    clock = StepClock()
    clock.step_ms = 4.0
    gathering = Gathering(clock, time)
    come(gathering, time, *[0.0005] * 12)
    gathering.begun()
    come(gathering, time, 1.0)
    assert gathering.wait_s() == pytest.approx(0.001)


def patient(rig: Rig, seconds: Callable[[], float]) -> None:
    rig.engine._gathering.wait_s = seconds  # type: ignore[method-assign]


@pytest.mark.parametrize(("num_tokens", "expected"), [(4, 0.01), (60, 0.0)])
def test_prompts_that_fill_half_a_step_are_not_put_off(num_tokens: int, expected: float) -> None:
    rig = Rig(tokens=100)
    patient(rig, lambda: 0.01)
    rig.engine.submit(Prefill(("a", 1), prompt(num_tokens), tails(()), GREEDY))
    assert rig.engine.patience() == expected


def test_no_stream_waits_for_prompts() -> None:
    rig = Rig()
    patient(rig, lambda: 0.01)
    rig.engine.submit(Prefill(("a", 1), prompt(4), tails(()), GREEDY))
    assert rig.engine.patience() == 0.01
    rig.engine.step()
    assert rig.engine.patience() == 0.0, "its next token is due"


def test_who_comes_while_the_loop_waits_is_in_the_same_step() -> None:
    rig = Rig()
    left = [0.01, 0.01, 0.0]
    patient(rig, lambda: left.pop(0) if left else 0.0)
    commands = [Prefill((name, 1), prompt(4, seed), tails(()), GREEDY) for seed, name in enumerate("ab")]
    steps: list[set[str]] = []

    def next_command(seconds: float | None) -> Prefill | Shutdown | None:
        if commands and (seconds is None or seconds > 0):
            return commands.pop(0)
        return Shutdown() if seconds is None else None

    def emit(report: object) -> None:
        steps.append({result.key[0] for result in report.results if isinstance(result, NewTokens)})  # type: ignore[attr-defined]

    run_loop(rig.engine, next_command, emit)
    assert next(names for names in steps if names) == {"a", "b"}
