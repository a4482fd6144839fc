"""What a sender sends next: within credit, in order, and again only what has not landed."""

from __future__ import annotations

import pytest

from engine.api import Computed
from engine.layout import CacheGroup, KVLayout
from kvtransfer.piece_queue import RESEND_PAUSE_S, PieceQueue
from protocol.handover import State
from protocol.messages import Grant, Receipt

LAYOUT = KVLayout((CacheGroup((0, 1), 1, 8),), "float32")
KEY = ("r", 1)
PIECE_BYTES = LAYOUT.layer_block_bytes(0)
"""One block of one layer: a prompt of n blocks has 2n pieces."""


def queue(num_blocks: int, *, credit: int = 1 << 30, num_cached_tokens: int = 0) -> PieceQueue:
    made = PieceQueue(LAYOUT)
    tokens = num_blocks * LAYOUT.block_size
    made.computed(0, Computed(KEY, -1, 0, tokens, tuple(range(num_blocks)), last=True))
    made.open(Grant(*KEY, "t" * 16, num_cached_tokens, credit, PIECE_BYTES), 1 << 20)
    return made


def heard(pieces: PieceQueue, next_piece: int, *missing: int, credit: int = 0) -> None:
    pieces.heard(Receipt(*KEY, "t" * 16, State.SENDING, next_piece, missing, credit))


def sent(pieces: PieceQueue, now: float) -> list[int]:
    """Send all that is due."""
    indices = []
    while (planned := pieces.due(now)) is not None:
        indices.append(planned.piece.index)
        pieces.sent(planned, b"", now)
    return indices


def test_nothing_is_due_before_there_is_a_grant() -> None:
    pieces = PieceQueue(LAYOUT)
    pieces.computed(0, Computed(KEY, -1, 0, 16, (0,), last=True))
    assert pieces.due(0.0) is None
    assert pieces.num_pieces == 0


def test_pieces_are_numbered_as_blocks_fill_and_what_the_receiver_has_is_left_out() -> None:
    pieces = PieceQueue(LAYOUT)
    pieces.open(Grant(*KEY, "t" * 16, 16, 1 << 30, PIECE_BYTES), 1 << 20)
    pieces.computed(0, Computed(KEY, -1, 0, 40, (7, 8, 9), last=False))
    assert sent(pieces, 0.0) == [0, 1]
    pieces.computed(0, Computed(KEY, -1, 0, 41, (7, 8, 9), last=True))
    assert sent(pieces, 0.0) == [2, 3]
    assert pieces.all_sent
    assert pieces.total_bytes == 4 * PIECE_BYTES


def test_no_more_is_sent_than_credit_allows() -> None:
    pieces = queue(3, credit=2 * PIECE_BYTES)
    assert sent(pieces, 0.0) == [0, 1]
    heard(pieces, 2, credit=5 * PIECE_BYTES)
    heard(pieces, 1, credit=3 * PIECE_BYTES)  # an older one, overtaken
    assert sent(pieces, 0.0) == [2, 3, 4]
    assert not pieces.all_sent


def test_a_missing_piece_is_sent_again_after_a_pause_that_grows() -> None:
    pieces = queue(2)
    assert sent(pieces, 0.0) == [0, 1, 2, 3]
    now = 0.0
    for factor in (1, 4, 16):
        heard(pieces, 1, 1, 3)
        assert sent(pieces, now + factor * RESEND_PAUSE_S * 0.9) == []
        now += factor * RESEND_PAUSE_S * 1.01
        assert sent(pieces, now) == [1, 3]


def test_what_was_asked_for_and_has_landed_since_is_not_sent_again() -> None:
    pieces = queue(4)
    sent(pieces, 0.0)
    heard(pieces, 2, 4)
    heard(pieces, 6)
    heard(pieces, 2, 4)  # late
    assert sent(pieces, 1.0) == [6]


@pytest.mark.parametrize("missing", [-1, 4, 1 << 30])
def test_a_piece_that_was_never_sent_cant_be_missing(missing: int) -> None:
    pieces = queue(2)
    sent(pieces, 0.0)
    heard(pieces, 4, missing)
    assert sent(pieces, 1.0) == []
