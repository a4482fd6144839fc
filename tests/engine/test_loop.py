"""The loop obeys between steps, blocks only when there is nothing to do, and stops when told."""

from collections.abc import Iterable

import pytest

from engine.api import Command, NewTokens, Prefill, Release, Released, Report, Reserve, Reserved, Shutdown, StopChoice
from engine.loop import run_loop
from engine.turns import NoTurns, Turns
from tests.support.engine_rig import GREEDY, KEY, Rig, generate, prefill, prompt, tails


class Script:
    """Commands for a loop: each is given at the n-th question, or when the loop may block."""

    def __init__(self, rig: Rig, commands: Iterable[tuple[int, Command]]) -> None:
        self.rig = rig
        self.commands = list(commands)
        self.num_asked = 0
        self.reports: list[Report] = []

    def next_command(self, seconds: float | None) -> Command | None:
        assert seconds is not None or not self.rig.engine.has_work()
        self.num_asked += 1
        if self.commands and self.commands[0][0] <= self.num_asked:
            return self.commands.pop(0)[1]
        if seconds is not None:
            return None
        return self.commands.pop(0)[1] if self.commands else Shutdown()

    def run(self, turns: Turns | None = None) -> list[object]:
        run_loop(self.rig.engine, self.next_command, self.reports.append, turns)
        return [result for report in self.reports for result in report.results]


def test_it_emits_the_load_at_once_and_whatever_a_request_makes() -> None:
    script = Script(Rig(), [(1, prefill())])
    results = script.run()
    assert script.reports[0].load.total_blocks == 96
    assert [type(r) for r in results] == [NewTokens] * 24 + [Released]
    assert script.reports[-1].load.held_blocks == 0


def test_commands_that_come_meanwhile_are_obeyed_between_steps() -> None:
    other = Prefill(("other", 0), prompt(20, 3), tails(()), GREEDY)
    script = Script(Rig(), [(1, prefill()), (6, other), (9, StopChoice(KEY, 0))])
    results = script.run()
    made = [r for r in results if isinstance(r, NewTokens)]
    assert 0 < sum(r.key == KEY for r in made) < 24
    alone = generate(Rig(), prompt(20, 3))[0]
    assert [r.token_ids[0] for r in made if r.key == ("other", 0)] == alone


def test_answers_are_emitted_though_nothing_is_computed() -> None:
    results = Script(Rig(), [(1, Reserve(KEY, 40, (0,), 5)), (2, Release(KEY))]).run()
    assert results == [Reserved(KEY), Released(KEY)]


class Late(NoTurns):
    """Each step has to ask three times before it may begin; the script is asked for a command in between."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.num_asked = 0
        self.reports_before_steps: list[int] = []

    def pause(self) -> float:
        self.num_asked += 1
        return 0.001 if self.num_asked % 3 else 0.0

    def begin(self, num_prompts: int) -> None:
        self.reports_before_steps.append(len(self.script.reports))


def test_while_a_step_is_not_due_commands_are_obeyed_and_answered() -> None:
    script = Script(Rig(), [(1, prefill()), (6, Reserve(("other", 0), 40, (0,), 5))])
    turns = Late(script)
    results = script.run(turns)
    reserved = next(i for i, report in enumerate(script.reports) if Reserved(("other", 0)) in report.results)
    assert script.reports[reserved].results == (Reserved(("other", 0)),)  # not with a step's tokens: it was told before
    assert reserved + 1 in turns.reports_before_steps
    assert sum(isinstance(r, NewTokens) for r in results) == 24


def test_shutdown_is_obeyed_while_a_step_is_not_due() -> None:
    script = Script(Rig(), [(1, prefill()), (3, Shutdown())])
    assert script.run(Late(script)) == []


def test_it_blocks_while_all_that_waits_cannot_start() -> None:
    rig = Rig(8)
    rig.run(Reserve(("lands", 0), 60, (0,), 1))
    script = Script(rig, [(1, prefill(100)), (50, Release(("lands", 0)))])
    results = script.run()
    assert script.num_asked < 80
    assert sum(isinstance(r, NewTokens) for r in results) == 24


def test_shutdown_leaves_after_the_current_step() -> None:
    script = Script(Rig(), [(1, prefill()), (5, Shutdown())])
    results = script.run()
    assert 0 < sum(isinstance(r, NewTokens) for r in results) < 24


def test_an_engine_that_gives_up_ends_the_loop() -> None:
    rig = Rig()
    script = Script(rig, [(1, prefill())])
    rig.engine._computation._model = None  # type: ignore[assignment]
    rig.engine._failures = 2
    with pytest.raises(AttributeError):
        script.run()
