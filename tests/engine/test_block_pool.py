"""Blocks are in one state each, whatever happens, and a mistake is an exception that names the block."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.block_pool import BlockPool
from engine.errors import BrokenPromise


def named(number: int) -> bytes:
    return b"name %d" % number


def test_a_named_block_is_cached_after_its_last_hold_and_found_again() -> None:
    pool = BlockPool(2)
    block = pool.take()
    pool.name(block, b"a")
    pool.hold(block)
    pool.drop(block)
    assert (pool.num_held, pool.num_cached) == (1, 0)
    pool.drop(block)
    assert (pool.num_held, pool.num_cached, pool.num_free) == (0, 1, 1)
    assert pool.find(b"a") == block
    pool.hold(block)
    assert (pool.num_held, pool.num_cached) == (1, 0)


def test_free_blocks_are_taken_before_cached_ones_and_the_oldest_of_those_first() -> None:
    pool = BlockPool(3)
    blocks = [pool.take() for _ in range(3)]
    for block in blocks[:2]:
        pool.name(block, named(block))
    for block in reversed(blocks):
        pool.drop(block)
    assert [pool.take() for _ in range(3)] == [blocks[2], blocks[1], blocks[0]]
    assert pool.find(named(blocks[0])) is None


def test_children_dropped_before_parents_are_forgotten_before_them() -> None:
    pool = BlockPool(6)
    chain = [pool.take() for _ in range(6)]
    for block in chain:
        pool.name(block, named(block))
    for block in reversed(chain):
        pool.drop(block)
    for left in range(5, 0, -1):
        pool.take()
        assert [pool.find(named(b)) for b in chain] == chain[:left] + [None] * (6 - left)


def test_a_second_block_of_the_same_content_gives_way_to_the_first() -> None:
    pool = BlockPool(3)
    first, second = pool.take(), pool.take()
    assert pool.name(first, b"a") == first
    assert pool.name(second, b"a") == first
    assert (pool.holds(first), pool.holds(second)) == (2, 0)
    pool.check()


def test_without_prefix_caching_no_block_is_kept() -> None:
    pool = BlockPool(1, enable_prefix_caching=False)
    block = pool.take()
    pool.name(block, b"a")
    pool.drop(block)
    assert pool.find(b"a") is None
    assert pool.num_free == 1


def test_giving_back_too_often_is_a_broken_promise_that_names_the_block() -> None:
    pool = BlockPool(2)
    block = pool.take()
    pool.drop(block)
    with pytest.raises(BrokenPromise, match=f"block {block} was given back"):
        pool.drop(block)


@pytest.mark.parametrize("block", [-1, 2, 99])
def test_a_foreign_block_is_a_broken_promise(block: int) -> None:
    pool = BlockPool(2)
    for act in (pool.drop, pool.hold, pool.holds):
        with pytest.raises(BrokenPromise, match=f"block {block} is not in this pool"):
            act(block)


def test_holding_or_naming_a_free_block_is_a_broken_promise() -> None:
    pool = BlockPool(2)
    with pytest.raises(BrokenPromise, match="block 0 is free"):
        pool.hold(0)
    with pytest.raises(BrokenPromise, match="block 0 is named but nobody holds it"):
        pool.name(0, b"a")


def test_a_second_name_is_a_broken_promise() -> None:
    pool = BlockPool(1)
    block = pool.take()
    pool.name(block, b"a")
    assert pool.name(block, b"a") == block
    with pytest.raises(BrokenPromise, match="second name"):
        pool.name(block, b"b")


def test_taking_from_an_exhausted_pool_is_a_broken_promise() -> None:
    pool = BlockPool(1)
    pool.take()
    with pytest.raises(BrokenPromise, match="all are held"):
        pool.take()


def test_check_finds_a_damaged_ledger() -> None:
    pool = BlockPool(3)
    pool._free.append(pool._free[0])
    with pytest.raises(BrokenPromise, match="twice"):
        pool.check()
    pool = BlockPool(3)
    pool._holds[1] = 1
    with pytest.raises(BrokenPromise, match="block 1 is in 2 states"):
        pool.check()


def test_a_pool_needs_a_block() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)


class PoolMachine(RuleBasedStateMachine):
    """Any order of operations, compared with a plain model: a list of holds, and names of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(6)
        self.holds: list[int] = []
        self.names: dict[bytes, int] = {}

    @rule()
    def take(self) -> None:
        if self.pool.num_available:
            block = self.pool.take()
            assert block not in self.holds
            self.names = {name: b for name, b in self.names.items() if b != block}
            self.holds.append(block)
        else:
            assert len(set(self.holds)) == 6

    @rule(pick=st.integers(0, 99))
    def drop(self, pick: int) -> None:
        if self.holds:
            self.pool.drop(self.holds.pop(pick % len(self.holds)))

    @rule(pick=st.integers(0, 99))
    def share(self, pick: int) -> None:
        if self.holds:
            block = self.holds[pick % len(self.holds)]
            self.pool.hold(block)
            self.holds.append(block)

    @rule(pick=st.integers(0, 99), number=st.integers(0, 9))
    def name(self, pick: int, number: int) -> None:
        candidates = [b for b in self.holds if b not in self.names.values()]
        if candidates:
            block = candidates[pick % len(candidates)]
            kept = self.pool.name(block, named(number))
            assert kept == self.names.setdefault(named(number), block)
            self.holds[self.holds.index(block)] = kept

    @rule(number=st.integers(0, 9))
    def hit(self, number: int) -> None:
        block = self.pool.find(named(number))
        assert block == self.names.get(named(number))
        if block is not None:
            self.pool.hold(block)
            self.holds.append(block)

    @invariant()
    def books_add_up(self) -> None:
        pool = self.pool
        pool.check()
        assert pool.num_held == len(set(self.holds))
        assert pool.num_cached == len(set(self.names.values()) - set(self.holds))
        assert pool.num_free + pool.num_held + pool.num_cached == 6
        for block in range(6):
            assert pool.holds(block) == self.holds.count(block)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase
