"""A model whose cache isn't the pool's memory: what is shipped was fetched, what has landed is placed, in any time.

Copies are those of a stream that does them late, when it is asked often enough or waited for.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.api import (
    Adopt,
    Broken,
    ChoiceTail,
    Command,
    Computed,
    Grant,
    Granted,
    NewTokens,
    Ping,
    Pong,
    Prefill,
    Release,
    Released,
    Report,
    Result,
    Shutdown,
)
from engine.copy_stream import Copy, LateStream
from engine.loop import run_loop
from engine.pool_memory import PoolMemory
from engine.staging import Staging
from tests.support.engine_rig import GREEDY, KEY, SEEDED, HandOver, Rig, generate, names, only, prefill, prompt, tails

NEVER = 1 << 30
OTHER = ("other", 0)


class Watched(LateStream):
    """Remembers what it was given."""

    def __init__(self, num_asks: int) -> None:
        super().__init__(num_asks)
        self.copies: list[Copy] = []

    def run(self, work: Callable[[], None]) -> Copy:
        self.copies.append(super().run(work))
        return self.copies[-1]

    def finish(self) -> None:
        for copy in self.copies:
            copy.finish()


class LateRig(Rig):
    """An engine apart from its pool, and its stream."""

    def __init__(self, num_asks: int, num_blocks: int = 96, *, tokens: int = 64) -> None:
        self.stream = Watched(num_asks)
        super().__init__(num_blocks, tokens=tokens, staging=self._staging)

    def _staging(self, memory: PoolMemory) -> Staging:
        return Staging(memory, apart=True, stream=self.stream)

    def while_busy(self, *commands: Command) -> list[Result]:
        """Submit, and step as long as there is work, whatever is still under way then."""
        self.submit(*commands)
        results: list[Result] = []
        while self.engine.has_work():
            results += self.step()
        return results

    def on_host(self, block: int) -> bytes:
        return b"".join(part[block].tobytes() for layer in self.memory.layers(0) for part in (layer.k, layer.v))

    def on_device(self, block: int) -> bytes:
        cache = self.engine._staging.cache
        return b"".join(part[block].numpy().tobytes() for layer in cache for part in (layer.k, layer.v))

    def soil(self, block: int) -> bytes:
        """Let io write into a block; what it holds then."""
        for layer in self.memory.layers(0):
            layer.k[block], layer.v[block] = 0x3F, 0x3E
        return self.on_host(block)


@pytest.mark.parametrize("num_asks", [0, 1, 5, NEVER])
@pytest.mark.parametrize("num_choices", [1, 3])
@pytest.mark.parametrize("length", [5, 16, 100])
def test_a_hand_over_between_two_devices_gives_the_tokens_of_one(length: int, num_choices: int, num_asks: int) -> None:
    choices = tuple(ChoiceTail(c) for c in range(num_choices))
    whole = generate(Rig(), prompt(length), SEEDED, choices=choices)
    p, d = LateRig(min(num_asks, 5)), LateRig(num_asks)
    assert HandOver(p, d, prompt(length), SEEDED, choices).whole() == whole


# -- from the device to the host ----------------------------------------------------------------------------


@pytest.mark.parametrize("num_asks", [0, 1, 4, 9])
def test_whatever_is_reported_as_computed_lies_on_the_host_by_then(num_asks: int) -> None:
    rig = LateRig(num_asks, tokens=40)
    rig.submit(prefill(100, hand_over=True), Prefill(OTHER, prompt(40, 3), tails((), (5,) * 20), SEEDED, "", True))
    reports: list[Computed] = []
    while rig.engine.has_work() or rig.engine.expects_news:
        for computed in only(rig.step(), Computed):
            reports.append(computed)
            assert all(rig.on_host(block) == rig.on_device(block) for block in computed.blocks)
    assert [(r.num_tokens, r.last) for r in reports if r.key == KEY][-1] == (100, True)
    assert {r.choice for r in reports if r.key == OTHER} == {-1, 1}


def test_steps_go_on_while_a_copy_is_under_way_and_only_its_key_is_silent() -> None:
    rig = LateRig(NEVER, tokens=40)
    rig.submit(Prefill(OTHER, prompt(20, 3), tails(()), GREEDY), prefill(100, hand_over=True), Ping(7))
    results = rig.while_busy()
    assert {r.key for r in only(results, NewTokens)} == {OTHER}
    assert Pong(7) in results
    assert only(results, Computed) == []
    assert len(rig.tokens(OTHER)) == 24


def test_first_tokens_follow_what_was_computed_before_them() -> None:
    def made(rig: Rig) -> list[object]:
        return [(type(r), r.key) for r in rig.run(prefill(100, hand_over=True))]  # type: ignore[union-attr]

    assert made(LateRig(7, tokens=40)) == made(Rig(tokens=40))


def test_without_another_command_the_loop_tells_what_arrives_later() -> None:
    rig, commands = LateRig(9), [prefill(100, hand_over=True)]
    reports: list[Report] = []

    def next_command(seconds: float | None) -> Command | None:
        if commands:
            return commands.pop(0)
        assert seconds is not None or any(only(report.results, NewTokens) for report in reports)
        return Shutdown() if seconds is None else None

    run_loop(rig.engine, next_command, reports.append)
    assert [type(r) for report in reports for r in report.results] == [Computed, Computed, NewTokens]


def test_what_arrives_while_a_step_is_computed_is_told_before_the_steps_end() -> None:
    rig = LateRig(2, tokens=40)
    early: list[Report] = []
    rig.engine.tell_early(early.append)
    rig.submit(prefill(100, hand_over=True))
    assert only(rig.step(), Computed) == []
    assert early == []
    rig.step()  # two layers, at each of which it is asked
    assert [r.num_tokens for report in early for r in only(report.results, Computed)] == [32]


def test_a_released_key_is_silent_though_its_copy_is_under_way() -> None:
    rig = LateRig(4, tokens=40)
    rig.submit(prefill(100, hand_over=True))
    rig.step()
    assert rig.run(Release(KEY)) == [Released(KEY)]
    rig.assert_empty()


def test_what_a_broken_key_had_computed_is_not_told_after_its_end() -> None:
    rig = LateRig(NEVER, tokens=40)
    rig.submit(prefill(100, hand_over=True))
    rig.step()
    rig.engine._break(KEY, ValueError("the model's doing"))
    assert [type(r) for r in rig.while_busy()] == [Broken]
    rig.stream.finish()
    assert rig.run() == []
    rig.assert_empty()


def test_a_block_is_granted_only_after_the_copy_that_writes_it_on_the_host() -> None:
    rig = LateRig(NEVER, 8, tokens=128)
    rig.submit(prefill(100, hand_over=True))
    rig.step()
    granted = rig.run(Release(KEY), Grant(OTHER, 50, (0,), 5, names(prompt(50, 3))))[-1]
    assert isinstance(granted, Granted)
    landed = {block: rig.soil(block) for block in granted.trunk}
    rig.stream.finish()
    assert {block: rig.on_host(block) for block in granted.trunk} == landed


# -- from the host to the device ----------------------------------------------------------------------------


def landed(d: LateRig, length: int, name: str = "h") -> tuple[HandOver, Adopt]:
    """A hand-over to ``d`` whose blocks are on its host."""
    hand_over = HandOver(Rig(), d, prompt(length), GREEDY, name=name)
    assert isinstance(hand_over.grant(), Granted)
    made = hand_over.prefill()
    hand_over.ship(made)
    return hand_over, hand_over.adopt_command(made)


def test_who_is_adopted_joins_once_its_blocks_are_there_and_nobody_waits_for_them() -> None:
    d = LateRig(NEVER)
    hand_over, adopt = landed(d, 100)
    d.submit(Prefill(OTHER, prompt(20, 3), tails(()), GREEDY))
    d.step()
    d.submit(adopt)
    for _ in range(4):
        assert {r.key for r in only(d.step(), NewTokens)} == {OTHER}
    d.stream.finish()
    d.step()
    assert {r.key for r in only(d.step(), NewTokens)} == {OTHER, hand_over.key}
    d.run()
    assert d.tokens(hand_over.key) == generate(Rig(), prompt(100))[0][1:]
    assert d.tokens(OTHER) == generate(Rig(), prompt(20, 3))[0]


def test_who_is_adopted_alone_is_computed_at_once_behind_its_blocks() -> None:
    d = LateRig(NEVER)
    hand_over, adopt = landed(d, 100)
    d.submit(adopt)
    assert [r.key for r in only(d.step(), NewTokens)] == [hand_over.key]
    d.run()
    assert d.tokens(hand_over.key) == generate(Rig(), prompt(100))[0][1:]


def test_a_prompt_that_finds_blocks_in_the_cache_that_are_still_placed_is_computed_behind_them() -> None:
    d = LateRig(NEVER)
    _, adopt = landed(d, 100)
    d.submit(Prefill(("beside", 0), prompt(20, 3), tails(()), GREEDY))
    d.step()
    d.submit(adopt, Prefill(OTHER, prompt(100), tails(()), GREEDY))
    d.step()
    assert d.load.prompt_tokens_cached == 96
    d.run()
    assert d.tokens(OTHER) == generate(Rig(), prompt(100))[0]


def test_blocks_that_are_there_under_the_same_name_are_not_placed_again() -> None:
    d = LateRig(NEVER)
    adopts = [landed(d, 96, name)[1] for name in ("one", "two")]
    d.submit(adopts[0])
    num_copies = len(d.stream.copies)
    d.submit(adopts[1])
    assert len(d.stream.copies) == num_copies
    d.run()
    assert d.tokens(("two", 0)) == generate(Rig(), prompt(96))[0][1:]


def test_a_block_is_computed_into_only_after_the_copy_that_writes_it_on_the_device() -> None:
    d = LateRig(NEVER, 9)
    hand_over, adopt = landed(d, 100)
    d.submit(Prefill(OTHER, prompt(9, 3), tails(()), GREEDY))
    d.step()
    d.submit(adopt, Release(hand_over.key), Prefill(("next", 0), prompt(90, 5), tails(()), GREEDY))
    d.step()
    d.stream.finish()
    d.run()
    assert d.tokens(("next", 0)) == generate(Rig(), prompt(90, 5))[0]


# -- the end ------------------------------------------------------------------------------------------------


def test_an_engine_that_is_closed_waits_for_what_is_under_way() -> None:
    rig, commands = LateRig(NEVER), [prefill(100, hand_over=True)]
    reports: list[Report] = []

    def next_command(seconds: float | None) -> Command | None:
        return commands.pop(0) if commands else Shutdown() if rig.load.num_steps else None

    run_loop(rig.engine, next_command, reports.append)
    assert rig.stream.copies
    assert not rig.stream._waiting
    assert only([r for report in reports for r in report.results], Computed) == []


def test_an_engine_whose_step_fails_for_good_is_closed_too() -> None:
    rig = LateRig(NEVER)

    def fail(seconds: float | None) -> Command | None:
        if rig.stream.copies:
            raise KeyError("the port's doing")
        return prefill(100, hand_over=True) if not rig.engine.has_work() else None

    with pytest.raises(KeyError):
        run_loop(rig.engine, fail, lambda report: None)
    assert not rig.stream._waiting


def test_on_a_cpu_nothing_is_copied() -> None:
    rig = Rig()
    staging = rig.engine._staging
    assert not staging.is_apart
    rig.run(prefill(100, hand_over=True))
    assert staging.cache[0].k.data_ptr() == rig.memory.layers(0)[0].k.ctypes.data
