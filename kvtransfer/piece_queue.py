"""The pieces of one transfer at its sender: numbered as blocks fill, due within credit, due again when asked for."""

from __future__ import annotations

from dataclasses import dataclass

from engine.api import Computed
from engine.layout import KVLayout
from kvtransfer.pieces import TARGET_PIECE_BYTES, Piece, contents_digest, plan_ranges
from protocol.messages import Grant, Receipt

RESEND_PAUSE_S = 0.1
"""A piece isn't sent a second time sooner than this, four times longer for each further one: the receiver
may ask while it is still on the way."""


@dataclass(slots=True)
class Planned:
    """A piece, once numbered, and how often it went out."""

    piece: Piece
    num_bytes: int
    digest: bytes = b""
    num_sends: int = 0
    sent_at: float = 0.0


@dataclass(slots=True)
class _Branch:
    """What is computed of one branch: its own blocks so far, and how many of them are planned."""

    blocks: tuple[int, ...] = ()
    num_whole: int = 0
    num_planned: int = 0


class PieceQueue:
    """Pure bookkeeping: knows no link and no clock."""

    def __init__(self, layout: KVLayout) -> None:
        """Nothing is due before ``open``."""
        self.total_bytes = 0
        self._layout = layout
        self._grant: Grant | None = None
        self._max_piece_bytes = 0
        self._branches: dict[int, _Branch] = {}
        self._pieces: list[Planned] = []
        self._next_send = 0
        self._resend: set[int] = set()
        self._num_landed = 0
        self._credit = 0

    @property
    def num_pieces(self) -> int:
        """Pieces numbered so far."""
        return len(self._pieces)

    @property
    def all_sent(self) -> bool:
        """Each has gone out once."""
        return self._next_send == len(self._pieces)

    def open(self, grant: Grant, max_bytes: int) -> None:
        """Number what is whole, in pieces of ``max_bytes`` at the most."""
        self._grant = grant
        self._credit = grant.credit_bytes
        self._max_piece_bytes = min(grant.max_piece_bytes, TARGET_PIECE_BYTES, max_bytes)
        for number, branch in self._branches.items():
            self._plan(number, branch)

    def computed(self, number: int, done: Computed) -> None:
        """Blocks of a branch are final. ``number`` is 0 for the trunk, else the choice's position plus one."""
        whole = done.num_tokens - done.first_token
        size = self._layout.block_size
        num_whole = -(-whole // size) if done.last else whole // size
        branch = self._branches.setdefault(number, _Branch())
        branch.blocks, branch.num_whole = done.blocks, max(branch.num_whole, num_whole)
        self._plan(number, branch)

    def heard(self, receipt: Receipt) -> None:
        """Note credit, what is missing, and what has landed since it was asked for."""
        self._credit = max(self._credit, receipt.credit_bytes)
        self._num_landed = max(self._num_landed, receipt.next_piece)
        asked = self._resend | {*receipt.missing, receipt.next_piece}
        self._resend = {index for index in asked if self._num_landed <= index < self._next_send}

    def due(self, now: float) -> Planned | None:
        """What may be sent at ``now``; the same until ``sent``."""
        for index in sorted(self._resend):
            planned = self._pieces[index]
            if now - planned.sent_at >= RESEND_PAUSE_S * 4 ** (planned.num_sends - 1):
                return planned
        if self._next_send < len(self._pieces):
            planned = self._pieces[self._next_send]
            if planned.piece.offset + planned.num_bytes <= self._credit:
                return planned
        return None

    def table(self, planned: Planned) -> tuple[int, ...]:
        """The blocks of its branch."""
        return self._branches[planned.piece.range.branch].blocks

    def sent(self, planned: Planned, digest: bytes, now: float) -> None:
        """It went out at ``now``."""
        index = planned.piece.index
        planned.digest = digest
        planned.num_sends += 1
        planned.sent_at = now
        self._resend.discard(index)
        self._next_send = max(self._next_send, index + 1)

    def digest(self) -> bytes:
        """Over all pieces' digests in order."""
        return contents_digest([planned.digest for planned in self._pieces])

    def _plan(self, number: int, branch: _Branch) -> None:
        """Number the pieces of a branch's blocks that are whole by now."""
        if self._grant is None:
            return
        skipped = self._grant.num_cached_tokens // self._layout.block_size if number == 0 else 0
        start = max(branch.num_planned, skipped)
        if branch.num_whole <= start:
            return
        for where in plan_ranges(self._layout, number, start, branch.num_whole - start, self._max_piece_bytes):
            piece = Piece(self._grant.transfer_id, len(self._pieces), self.total_bytes, where)
            planned = Planned(piece, where.num_bytes(self._layout))
            self._pieces.append(planned)
            self.total_bytes += planned.num_bytes
        branch.num_planned = branch.num_whole
