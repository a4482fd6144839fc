"""Tokens and their blocks: what is shared, copied, named and given back, and in which order."""

from engine.block_pool import BlockPool
from engine.sequence import Sequence
from protocol.block_hash import chain_hashes, root_hash
from tests.support.engine_rig import GREEDY, HandOver, Rig, generate, names, prompt

ROOT = root_hash("toy", "float32")


def computed(pool: BlockPool, length: int) -> Sequence:
    sequence = Sequence(0, list(prompt(length)), ROOT)
    sequence.start(pool, sequence.find_cached(pool))
    sequence.advance(pool, sequence.num_left)
    return sequence


def test_names_are_those_that_everyone_else_computes() -> None:
    sequence = Sequence(0, list(prompt(50)), ROOT)
    assert [sequence.name(index) for index in range(3)] == chain_hashes(ROOT, prompt(50))


def test_a_name_covers_tokens_that_came_later() -> None:
    sequence = Sequence(0, list(prompt(15)), ROOT)
    sequence.token_ids += [1, 2]
    assert sequence.name(0) == chain_hashes(ROOT, [*prompt(15), 1])[0]


def test_only_full_blocks_are_named() -> None:
    pool = BlockPool(8)
    sequence = computed(pool, 40)
    assert [pool.find(name) for name in chain_hashes(ROOT, prompt(48))] == [*sequence.blocks[:2], None]


def test_a_prompt_computed_twice_at_once_ends_up_in_one_set_of_full_blocks() -> None:
    pool = BlockPool(8)
    both = [Sequence(age, list(prompt(40)), ROOT) for age in range(2)]
    for sequence in both:
        sequence.start(pool, sequence.find_cached(pool))
    for sequence in both:
        sequence.advance(pool, 40)
    assert both[0].blocks[:2] == both[1].blocks[:2]
    assert both[0].blocks[2] != both[1].blocks[2]
    assert pool.num_held == 4
    pool.check()


def test_a_shared_partly_filled_block_is_copied_by_all_writers_but_the_last() -> None:
    pool = BlockPool(8)
    trunk = computed(pool, 20)
    forks = [trunk.fork(pool, age, 2, [*prompt(20), age]) for age in (1, 2)]
    trunk.drop(pool)
    source, copy = forks[0].make_room(pool) or (-1, -1)
    assert (source, copy) == (forks[1].blocks[1], forks[0].blocks[1])
    assert forks[1].make_room(pool) is None
    assert forks[0].blocks[0] == forks[1].blocks[0]
    for fork in forks:
        fork.drop(pool)
    assert pool.num_held == 0


def test_a_full_last_block_is_not_copied_but_followed_by_a_new_one() -> None:
    pool = BlockPool(8)
    trunk = computed(pool, 32)
    fork = trunk.fork(pool, 1, 2, [*prompt(32), 5])
    assert fork.make_room(pool) is None
    assert fork.blocks[:2] == trunk.blocks
    assert len(fork.blocks) == 3


def test_own_blocks_are_those_that_nobody_shares() -> None:
    pool = BlockPool(8)
    trunk = computed(pool, 40)
    fork = trunk.fork(pool, 1, 2, list(prompt(40)))
    assert (trunk.num_own(pool), fork.num_own(pool)) == (1, 0)


def test_the_cache_forgets_the_end_of_an_old_prompt_before_its_beginning() -> None:
    rig = Rig(12, tokens=200)
    generate(rig, prompt(96, 1), name="old")
    generate(rig, prompt(96, 2), name="evicts")
    pool = rig.engine._pool
    found = [pool.find(name) is not None for name in names(prompt(96, 1))]
    assert found == sorted(found, reverse=True)
    assert found[0]
    assert not found[-1]


def test_the_blocks_of_an_adopted_prompt_are_named_at_once() -> None:
    rig = Rig()
    hand_over = HandOver(Rig(), rig, prompt(40), GREEDY)
    hand_over.grant()
    made = hand_over.prefill()
    hand_over.ship(made)
    assert rig.engine._pool.find(names(prompt(40))[1]) is None
    rig.submit(hand_over.adopt_command(made))
    assert hand_over.granted is not None
    assert rig.engine._pool.find(names(prompt(40))[1]) == hand_over.granted.trunk[1]
