"""The decode worker's end of one transfer: verifies pieces, writes them into its pool, waits for the record."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from engine.api import Granted
from kvtransfer.contents import PoolContents
from kvtransfer.credit import CreditPool
from kvtransfer.pieces import (
    TARGET_PIECE_BYTES,
    Piece,
    PieceError,
    binding,
    contents_digest,
    verified_data,
)
from protocol.handover import State
from protocol.messages import Grant, KVHandover, Peer, Receipt
from runtime.logs import get_logger
from runtime.postbox import Postbox

FIRST_RECEIPT_S = 0.1
LONGEST_RECEIPT_S = 1.0
"""While a transfer is open and nothing comes, the receipt is repeated: 100 ms, doubling to 1 s."""
RECEIPT_BYTES = 2 << 20
"""A receipt at least every so many landed bytes: half of a transfer's credit while there is enough for all."""
MAX_MISSING = 256
"""Missing pieces named in one receipt; the rest are named in the next."""
MAX_PIECES = 1 << 22

log = get_logger("receiver")


@dataclass(frozen=True, slots=True)
class ReceiverParts:
    """What receivers of one worker share."""

    postbox: Postbox
    contents: PoolContents
    credit: CreditPool


class Receiver:
    """One hand-over into this pool. ``on_complete(record)`` is called once, when all is verified."""

    def __init__(
        self,
        parts: ReceiverParts,
        key: tuple[str, int],
        sender: Peer,
        granted: Granted,
        on_complete: Callable[[KVHandover], None],
    ) -> None:
        """Opens credit; ``grant()`` is the answer to send. Needs a running loop."""
        self.state = State.GRANTED
        self.key = key
        self.sender = sender
        self.transfer_id = secrets.token_hex(8)
        self.bytes_landed = 0
        self._parts = parts
        self._granted = granted
        self._on_complete = on_complete
        self._tables = (granted.trunk, *granted.branches)
        self._bound = binding(*key, sender.epoch, parts.postbox.me.epoch, parts.contents.layout)
        self._credit = parts.credit.open(self.transfer_id, self._send_receipt)
        self._digests: dict[int, bytes] = {}
        self._next_piece = 0
        self._highest = -1
        self._record: KVHandover | None = None
        self._bytes_at_receipt = 0
        self._loop = asyncio.get_running_loop()
        self._pause = FIRST_RECEIPT_S
        self._timer = self._loop.call_later(self._pause, self._repeat)

    def grant(self) -> Grant:
        """The answer to the sender's question, the same however often it asks."""
        request_id, attempt = self.key
        cached = self._granted.num_cached_tokens
        return Grant(request_id, attempt, self.transfer_id, cached, self._credit, TARGET_PIECE_BYTES)

    def land(self, frame: memoryview, piece: Piece) -> None:
        """Verify one frame of this transfer and write its bytes. A damaged one counts as missing."""
        if self.state not in (State.GRANTED, State.SENDING):
            return
        self.state = State.SENDING
        try:
            self._write(frame, piece)
        except PieceError as error:
            log.warning("piece_refused", request_id=self.key[0], piece=piece.index, error=str(error))
            self._send_receipt()
            return
        self._pause = FIRST_RECEIPT_S
        if self._complete():
            return
        gap = self._highest > self._next_piece
        # Of a small credit, half: with many open transfers all of it may be less than RECEIPT_BYTES, and a sender that
        # has used it up would wait for the timer.
        half = (self._credit - self._bytes_at_receipt) // 2
        if gap or self.bytes_landed - self._bytes_at_receipt >= min(RECEIPT_BYTES, half):
            self._send_receipt()

    def record(self, record: KVHandover) -> None:
        """The record came; a repeated one is answered with the state as it is."""
        if self._record is None and record.transfer_id == self.transfer_id:
            self._record = record
            self._highest = max(self._highest, record.num_pieces - 1)
            if self._complete():
                return
        self._send_receipt()

    def adopted(self) -> None:
        """The engine has the sequences: tell the sender, and stop expecting anything."""
        self.state = State.ADOPTED
        self._stop()
        self._send_receipt()

    def end(self, state: State) -> None:
        """The transfer is over: cancelled, failed. Idempotent; nothing is written any more."""
        self.state = state
        self._stop()

    def _write(self, frame: memoryview, piece: Piece) -> None:
        if piece.index in self._digests or piece.index >= MAX_PIECES:
            return
        if piece.range.branch >= len(self._tables):
            raise PieceError(f"there is no branch {piece.range.branch}")
        table = self._tables[piece.range.branch]
        skipped = self._granted.num_cached_tokens // self._parts.contents.layout.block_size
        if piece.range.branch == 0 and piece.range.first_block < skipped:
            raise PieceError("these blocks are here already and shared")
        data, digest = verified_data(frame, self._bound)
        self._parts.contents.write(piece.range, table, data)
        self._digests[piece.index] = digest
        self.bytes_landed += len(data)
        self._parts.credit.landed(self.transfer_id, len(data))
        self._highest = max(self._highest, piece.index)
        while self._next_piece in self._digests:
            self._next_piece += 1

    def _complete(self) -> bool:
        """Hand the record on if it and all its pieces are here and agree."""
        record = self._record
        if record is None or self._next_piece < record.num_pieces:
            return False
        digests = [self._digests[index] for index in range(record.num_pieces)]
        if contents_digest(digests) != record.contents_digest or record.total_bytes != self.bytes_landed:
            log.error("record_refused", request_id=self.key[0], attempt=self.key[1])
            return False
        self.state = State.COMPLETE
        self._on_complete(record)
        return True

    def _repeat(self) -> None:
        self._pause = min(self._pause * 2, LONGEST_RECEIPT_S)
        self._timer = self._loop.call_later(self._pause, self._repeat)
        self._send_receipt()

    def _send_receipt(self) -> None:
        self._bytes_at_receipt = self.bytes_landed
        if self.state in (State.GRANTED, State.SENDING):
            self._credit = self._parts.credit.extend(self.transfer_id)
        span = range(self._next_piece, self._highest + 1)
        missing = [index for index in span if index not in self._digests][:MAX_MISSING]
        receipt = Receipt(*self.key, self.transfer_id, self.state, self._next_piece, tuple(missing), self._credit)
        self._parts.postbox.send(self.sender, receipt)

    def _stop(self) -> None:
        self._timer.cancel()
        self._parts.credit.close(self.transfer_id)
