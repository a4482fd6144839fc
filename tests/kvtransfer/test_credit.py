"""Credit: what is open never exceeds the total, and everyone gets on."""

from hypothesis import given
from hypothesis import strategies as st

from kvtransfer.credit import CreditPool
from kvtransfer.pieces import TARGET_PIECE_BYTES

steps = st.lists(
    st.tuples(st.sampled_from(["open", "land", "extend", "close"]), st.integers(0, 5), st.integers(0, 2**21)),
    max_size=60,
)


@given(steps)
def test_open_credit_never_exceeds_the_total_and_never_shrinks(moves: list[tuple[str, int, int]]) -> None:
    pool = CreditPool(total_bytes=4 << 20, share_bytes=2 << 20)
    credits: dict[str, int] = {}
    for move, number, num_bytes in moves:
        name = f"t{number}"
        if move == "open" and name not in credits:
            credits[name] = pool.open(name)
        elif move == "close":
            credits.pop(name, None)
            pool.close(name)
        elif name in credits and move == "land":
            pool.landed(name, num_bytes)
        elif name in credits and move == "extend":
            after = pool.extend(name)
            assert after >= credits[name]
            credits[name] = after
        assert 0 <= pool.open_bytes <= 4 << 20


def test_a_transfer_that_found_nothing_left_gets_some_when_another_ends() -> None:
    pool = CreditPool(total_bytes=TARGET_PIECE_BYTES, share_bytes=TARGET_PIECE_BYTES)
    assert pool.open("a") == TARGET_PIECE_BYTES
    assert pool.open("b") == 0
    pool.close("a")
    assert pool.extend("b") == TARGET_PIECE_BYTES
