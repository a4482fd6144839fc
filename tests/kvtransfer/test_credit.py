"""Credit: what is open never exceeds the total, and everyone gets on."""

from hypothesis import given
from hypothesis import strategies as st

from kvtransfer.credit import FIRST_PART, OPEN_CREDIT_BYTES, CreditPool
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
            credits[name] = pool.open(name, lambda: None)
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


def test_a_transfer_that_found_nothing_left_is_told_when_another_ends() -> None:
    pool = CreditPool(total_bytes=TARGET_PIECE_BYTES, share_bytes=TARGET_PIECE_BYTES)
    told: list[str] = []
    assert pool.open("a", lambda: told.append("a")) == TARGET_PIECE_BYTES
    assert pool.open("b", lambda: told.append("b")) == 0
    assert pool.open("c", lambda: told.append("c")) == 0
    pool.close("a")
    assert told == ["b"]
    assert pool.extend("b") == TARGET_PIECE_BYTES
    pool.close("b")
    assert told == ["b", "c"]


def test_transfers_that_have_not_begun_leave_a_piece_for_most_others() -> None:
    pool = CreditPool()
    first = [pool.open(f"t{number}", lambda: None) for number in range(32)]
    assert first[0] == OPEN_CREDIT_BYTES // FIRST_PART
    assert sum(credit >= TARGET_PIECE_BYTES for credit in first) >= 24
    told: list[int] = []
    late = pool.open("late", lambda: told.append(1))
    while late < TARGET_PIECE_BYTES:
        pool.close(f"t{len(told)}")
        late = pool.extend("late")
    assert pool.open_bytes <= OPEN_CREDIT_BYTES
