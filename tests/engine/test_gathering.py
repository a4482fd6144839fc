"""Prompts of one burst are waited for, a few milliseconds; nobody else waits for anybody."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.api import Command, NewTokens, Prefill, Release, Released, Report, Reserve, Reserved, Shutdown
from engine.gathering import MOST_GAP_S, Gathering
from engine.loop import run_loop
from engine.step_clock import StepClock
from tests.support.engine_rig import GREEDY, KEY, Rig, prompt, tails


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


def test_a_prompt_that_was_never_computed_does_not_shorten_the_next_wait(gathering: Gathering, time: Time) -> None:
    burst(gathering, time)
    come(gathering, time, 1.0)  # and is canceled
    come(gathering, time, 1.0)
    assert gathering.wait_s() == pytest.approx(MOST_GAP_S)


def test_where_steps_are_short_so_are_waits(time: Time) -> None:
    clock = StepClock()
    clock.step_ms = 4.0
    gathering = Gathering(clock, time)
    come(gathering, time, *[0.0005] * 12)
    gathering.begun()
    come(gathering, time, 1.0)
    assert gathering.wait_s() == pytest.approx(0.001)


class Bursts:
    """An engine with a clock of its own, whose steps are said to take 200 ms."""

    def __init__(self) -> None:
        self.rig = Rig(tokens=100)
        self.time = Time()
        self.engine = self.rig.engine
        self.engine._gathering = Gathering(self.engine.clock, self.time)

    def come(self, name: str, token_ids: tuple[int, ...], gap_s: float = 0.002, max_tokens: int = 1) -> None:
        self.time.s += gap_s
        self.engine.clock.step_ms = 200.0
        self.engine.submit(Prefill((name, 1), token_ids, tails(()), replace(GREEDY, max_tokens=max_tokens)))

    def burst(self, name: str, gap_s: float = 0.002, num_prompts: int = 12) -> None:
        for i in range(num_prompts):
            self.come(f"{name}{i}", prompt(4, i), gap_s)


def test_an_engine_waits_for_a_burst_and_then_for_the_next() -> None:
    bursts = Bursts()
    bursts.burst("a")
    assert bursts.engine.patience() == pytest.approx(MOST_GAP_S)
    bursts.rig.run()
    bursts.burst("b", 0.004)
    bursts.rig.step()
    bursts.come("c", prompt(4))
    assert bursts.engine.patience() == pytest.approx(MOST_GAP_S), "the step began a new burst"


@pytest.mark.parametrize(("num_tokens", "waits"), [(40, True), (60, False)])
def test_prompts_that_fill_half_a_step_are_not_put_off(num_tokens: int, waits: bool) -> None:
    bursts = Bursts()
    bursts.burst("a")
    bursts.rig.run()
    bursts.come("b", prompt(num_tokens, 50))
    assert bool(bursts.engine.patience()) is waits


def test_what_the_cache_has_fills_no_step() -> None:
    bursts = Bursts()
    bursts.come("a", prompt(200, 50))
    bursts.rig.run()
    bursts.burst("b")
    bursts.rig.run()
    bursts.come("c", prompt(200, 50))
    assert bursts.engine.patience() == pytest.approx(MOST_GAP_S)


def test_no_stream_waits_for_prompts() -> None:
    bursts = Bursts()
    bursts.burst("a")
    bursts.rig.run()
    bursts.come("stream", prompt(4), max_tokens=9)
    assert bursts.engine.patience() > 0
    bursts.rig.step()
    bursts.come("b", prompt(4, 1))
    assert bursts.engine.patience() == 0.0, "the stream's next token is due"


def patient(rig: Rig, left: list[float]) -> None:
    rig.engine.patience = lambda: left.pop(0) if left else 0.0  # type: ignore[method-assign]


class Script:
    """Commands for a loop, the first together and others while it waits; what it emits, in the order of both."""

    def __init__(self, together: Sequence[Command], *commands: Command) -> None:
        self.together = list(together)
        self.commands = list(commands)
        self.happened: list[object] = []

    def next_command(self, seconds: float | None) -> Command | None:
        if self.together:
            return self.together.pop(0)
        if self.commands and seconds != 0.0:
            self.happened.append("waits")
            return self.commands.pop(0)
        return Shutdown() if seconds is None else None

    def emit(self, report: Report) -> None:
        self.happened += report.results


def test_who_comes_while_the_loop_waits_is_in_the_same_step() -> None:
    rig = Rig()
    patient(rig, [0.01, 0.01])
    script = Script([], *(Prefill((name, 1), prompt(4, seed), tails(()), GREEDY) for seed, name in enumerate("ab")))
    run_loop(rig.engine, script.next_command, script.emit)
    tokens = [result.key[0] for result in script.happened if isinstance(result, NewTokens)]
    assert tokens[:2] == ["a", "b"]
    assert rig.load.num_steps == 24


def test_answers_are_told_before_the_loop_waits() -> None:
    rig = Rig()
    patient(rig, [0.01, 0.01, 0.01])
    script = Script(
        [Reserve(KEY, 40, (0,), 5), Prefill(("a", 1), prompt(4), tails(()), GREEDY)],
        Release(KEY),
    )
    run_loop(rig.engine, script.next_command, script.emit)
    assert script.happened[:3] == [Reserved(KEY), "waits", Released(KEY)]
