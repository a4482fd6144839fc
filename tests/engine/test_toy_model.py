"""The toy model really reads its paged cache: a wrong block or slot shows as another token."""

import pytest

from engine.toy_model import ToyModel
from tests.support.engine_rig import GREEDY, KEY, Rig, generate, prefill, prompt


def test_a_damaged_block_changes_the_tokens_that_follow() -> None:
    (right,) = generate(Rig(), prompt(40))
    for layer in (0, 1):
        for half in ("k", "v"):
            rig = Rig()
            rig.submit(prefill())
            rig.step()
            getattr(rig.memory.layers(0)[layer], half)[1, 0, 6] ^= 0x40
            rig.run()
            assert rig.tokens(KEY) != right


def test_swapped_blocks_change_the_tokens_that_follow() -> None:
    (right,) = generate(Rig(), prompt(40))
    rig = Rig()
    rig.submit(prefill())
    rig.step()
    table = rig.engine._book.running[0].sequence.blocks
    table[0], table[1] = table[1], table[0]
    rig.run()
    assert rig.tokens(KEY) != right


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_its_numbers_are_exact_in_every_cache_dtype(dtype: str) -> None:
    assert generate(Rig(model=ToyModel(dtype=dtype)), prompt(200)) == generate(Rig(), prompt(200))


def test_its_answers_vary() -> None:
    (ids,) = generate(Rig(), prompt(40), GREEDY)
    assert len(set(ids)) > 15
