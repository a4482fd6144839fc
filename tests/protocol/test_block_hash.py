"""Block names: equal exactly when model, dtype, salt and all tokens before are equal."""

from hypothesis import given
from hypothesis import strategies as st

from protocol.block_hash import HASH_UNIT, block_hash, chain_hashes, root_hash

ROOT = root_hash("weights", "bfloat16")
ids = st.lists(st.integers(0, 2**32 - 1), max_size=70)


@given(ids)
def test_only_full_blocks_have_names(token_ids: list[int]) -> None:
    assert len(chain_hashes(ROOT, token_ids)) == len(token_ids) // HASH_UNIT


@given(ids, ids)
def test_names_agree_exactly_as_far_as_the_tokens_do(one: list[int], other: list[int]) -> None:
    pairs = zip(chain_hashes(ROOT, one), chain_hashes(ROOT, other), strict=False)
    for number, (a, b) in enumerate(pairs, 1):
        assert (a == b) == (one[: number * HASH_UNIT] == other[: number * HASH_UNIT])


def test_each_part_of_the_root_tells_models_apart() -> None:
    """Replays vllm #44701: an adapter and a salt of one name."""
    roots = {
        root_hash("w", "bfloat16"),
        root_hash("w", "float32"),
        root_hash("v", "bfloat16"),
        root_hash("w", "bfloat16", adapter="a"),
        root_hash("w", "bfloat16", salt="a"),
        root_hash("w", "bfloat16", adapter="a", salt="a"),
    }
    assert len(roots) == 6


def test_a_name_is_the_same_on_every_machine() -> None:
    name = block_hash(ROOT, list(range(16)))
    assert name.hex() == block_hash(root_hash("weights", "bfloat16"), tuple(range(16))).hex()
    assert len(name) == 32
