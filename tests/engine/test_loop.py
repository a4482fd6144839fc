"""The loop obeys between steps, blocks only when there is nothing to do, and stops when told."""

from collections.abc import Iterable

import pytest

from engine.api import Command, NewTokens, Prefill, Release, Released, Report, Reserve, Reserved, Shutdown, StopChoice
from engine.loop import run_loop
from tests.support.engine_rig import GREEDY, KEY, Rig, generate, prefill, prompt, tails


class Script:
    """Commands for a loop: each is given at the n-th question, or when the loop may block."""

    def __init__(self, rig: Rig, commands: Iterable[tuple[int, Command]]) -> None:
        self.rig = rig
        self.commands = list(commands)
        self.num_asked = 0
        self.reports: list[Report] = []

    def next_command(self, block: bool) -> Command | None:
        assert block != self.rig.engine.has_work() or not block
        self.num_asked += 1
        if self.commands and self.commands[0][0] <= self.num_asked:
            return self.commands.pop(0)[1]
        if not block:
            return None
        return self.commands.pop(0)[1] if self.commands else Shutdown()

    def run(self) -> list[object]:
        run_loop(self.rig.engine, self.next_command, self.reports.append)
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
    rig.engine._model = None  # type: ignore[assignment]
    rig.engine._failures = 2
    with pytest.raises(AttributeError):
        script.run()
