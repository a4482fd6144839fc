"""The prefill worker's end of one transfer: asks for a grant, pushes pieces as blocks fill, then the record."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.api import Computed
from kvtransfer.contents import PoolContents
from kvtransfer.link import Link
from kvtransfer.pieces import (
    HEADER_BYTES,
    TARGET_PIECE_BYTES,
    Piece,
    binding,
    contents_digest,
    pack_piece,
    plan_ranges,
)
from protocol.errors import Code
from protocol.handover import State
from protocol.messages import Grant, GrantRequest, KVHandover, Peer, Receipt
from runtime.postbox import Postbox
from runtime.repeats import Repeats

MAX_SENDS = 4
"""A piece is sent once and asked for again three times at the most; then the transfer has failed."""
RESEND_PAUSE_S = 0.1
"""A piece isn't sent a second time sooner than this, four times longer for each further one: the receiver
may ask while it is still on the way."""


_ENDS = frozenset({State.ADOPTED, State.FAILED, State.REFUSED, State.CANCELLED, State.RELEASED})


@dataclass(slots=True)
class _Planned:
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


@dataclass(frozen=True, slots=True)
class SenderParts:
    """What senders of one worker share."""

    postbox: Postbox
    repeats: Repeats
    link: Link
    contents: PoolContents


@dataclass(slots=True)
class _Progress:
    """Where the pieces stand."""

    pieces: list[_Planned] = field(default_factory=list)
    total_bytes: int = 0
    next_send: int = 0
    resend: set[int] = field(default_factory=set)
    credit: int = 0


class Sender:
    """One hand-over from this side. ``on_end(state, code, message)`` is called once: adopted, refused or failed."""

    def __init__(
        self,
        parts: SenderParts,
        question: GrantRequest,
        to: Peer,
        on_end: Callable[[State, str, str], None],
    ) -> None:
        """Asks at once, and goes on until ``fail`` or the other side's word: its owner keeps the deadline."""
        self.state = State.OFFERED
        self.to = to
        self.key = (question.request_id, question.attempt)
        self._parts = parts
        self._layout = parts.contents.layout
        self._on_end = on_end
        self._grant: Grant | None = None
        self._branches: dict[int, _Branch] = {}
        self._progress = _Progress()
        self._record: Callable[[Grant, int, int, bytes], KVHandover] | None = None
        self._loop = asyncio.get_running_loop()
        me = parts.postbox.me
        self._bound = binding(*self.key, me.epoch, to.epoch, self._layout)
        self._pump_task: asyncio.Task[None] | None = None
        self._links: set[str] = set()
        parts.link.offer(to)
        self._repeat("grant", question)

    @property
    def link(self) -> str:
        """Names of the links that pieces have gone by."""
        return "+".join(sorted(self._links)) or "none"

    @property
    def bytes_shipped(self) -> int:
        """Content bytes of all pieces, each counted once."""
        return self._progress.total_bytes

    def computed(self, branch: int, done: Computed) -> None:
        """Blocks of a branch are final. ``branch`` is 0 for the trunk, else the choice's position plus one."""
        whole = done.num_tokens - done.first_token
        size = self._layout.block_size
        num_whole = -(-whole // size) if done.last else whole // size
        known = self._branches.setdefault(branch, _Branch())
        known.blocks, known.num_whole = done.blocks, max(known.num_whole, num_whole)
        self._plan()

    def finish(self, record: Callable[[Grant, int, int, bytes], KVHandover]) -> None:
        """All branches are complete and the first tokens are known: ``record(grant, pieces, bytes, digest)``."""
        if self._record is not None or self.state in _ENDS:
            return
        self._record = record
        self._start_pump()

    def granted(self, grant: Grant) -> None:
        """The answer to the question; a repeated one changes nothing."""
        if self._grant is not None or self.state is not State.OFFERED:
            return
        self._parts.repeats.stop(("grant", self.key))
        self._grant = grant
        self._progress.credit = grant.credit_bytes
        self.state = State.GRANTED
        self._plan()

    def receipt(self, receipt: Receipt) -> None:
        """Credit, missing pieces, or the news that the other side has it all."""
        if self._grant is None or receipt.transfer_id != self._grant.transfer_id:
            return
        if receipt.state == State.ADOPTED:
            self._end(State.ADOPTED, "", "")
            return
        progress = self._progress
        progress.credit = max(progress.credit, receipt.credit_bytes)
        progress.resend.update(index for index in receipt.missing if index < progress.next_send)
        if receipt.next_piece < progress.next_send:
            progress.resend.add(receipt.next_piece)
        self._start_pump()

    def fail(self, code: str, message: str, state: State = State.FAILED) -> None:
        """The transfer is over from outside: refused, cancelled, the peer's death."""
        self._end(state, code, message)

    def _repeat(self, name: str, message: GrantRequest | KVHandover) -> None:
        """Send until it is answered; the transfer's own deadline ends it otherwise."""
        send = self._parts.postbox.send
        to = self.to
        self._parts.repeats.start((name, self.key), lambda: send(to, message), math.inf, lambda: None)

    def _plan(self) -> None:
        """Number the pieces of all blocks that are whole by now."""
        if self._grant is None:
            return
        largest = min(
            self._grant.max_piece_bytes,
            TARGET_PIECE_BYTES,
            self._parts.link.max_frame_bytes - HEADER_BYTES,
        )
        skipped = self._grant.num_cached_tokens // self._layout.block_size
        progress = self._progress
        for number, branch in self._branches.items():
            start = max(branch.num_planned, skipped if number == 0 else 0)
            if branch.num_whole <= start:
                continue
            for where in plan_ranges(self._layout, number, start, branch.num_whole - start, largest):
                piece = Piece(self._grant.transfer_id, len(progress.pieces), progress.total_bytes, where)
                num_bytes = where.num_bytes(self._layout)
                progress.pieces.append(_Planned(piece, num_bytes))
                progress.total_bytes += num_bytes
            branch.num_planned = branch.num_whole
        self._start_pump()

    def _start_pump(self) -> None:
        if self._grant is None or self.state in _ENDS:
            return
        if self._pump_task is None or self._pump_task.done():
            self._pump_task = self._loop.create_task(self._pump())

    async def _pump(self) -> None:
        """Send what credit allows, with a look at the loop after each burst; at the end the record."""
        if self.state is State.GRANTED:
            self.state = State.SENDING
        while self._send_burst():
            await self._parts.link.drain(self.to)
        if self.state is State.SENDING and self._progress.next_send == len(self._progress.pieces):
            self._send_record()

    def _send_burst(self) -> bool:
        """Send as much as goes between two looks at the loop, a piece at the least; whether there was any."""
        num_bytes = num_pieces = 0
        while self.state not in _ENDS and (index := self._next_index()) is not None:
            self._send_piece(index)
            num_bytes += self._progress.pieces[index].num_bytes
            num_pieces += 1
            if num_bytes >= self._parts.link.burst_bytes:
                break
        return num_pieces > 0

    def _next_index(self) -> int | None:
        progress = self._progress
        now = self._loop.time()
        for index in sorted(progress.resend):
            planned = progress.pieces[index]
            if now - planned.sent_at >= RESEND_PAUSE_S * 4 ** (planned.num_sends - 1):
                progress.resend.discard(index)
                return index
        if progress.next_send < len(progress.pieces):
            planned = progress.pieces[progress.next_send]
            if planned.piece.offset + planned.num_bytes <= progress.credit:
                return progress.next_send
        return None

    def _send_piece(self, index: int) -> None:
        progress = self._progress
        planned = progress.pieces[index]
        if planned.num_sends == MAX_SENDS:
            self._end(State.FAILED, Code.TRANSFER, f"piece {index} didn't land in {MAX_SENDS} tries")
            return
        table = self._branches[planned.piece.range.branch].blocks
        data = self._parts.contents.read(planned.piece.range, table)
        frame, planned.digest = pack_piece(planned.piece, self._bound, data)
        planned.num_sends += 1
        planned.sent_at = self._loop.time()
        progress.next_send = max(progress.next_send, index + 1)
        self._links.add(self._parts.link.send(self.to, frame))

    def _send_record(self) -> None:
        if self._record is None or self._grant is None:
            return
        self.state = State.COMPLETE
        pieces = self._progress.pieces
        digest = contents_digest([planned.digest for planned in pieces])
        record = self._record(self._grant, len(pieces), self._progress.total_bytes, digest)
        self._repeat("record", record)

    def _end(self, state: State, code: str, message: str) -> None:
        if self.state in _ENDS:
            return
        self.state = state
        self._parts.repeats.stop(("grant", self.key))
        self._parts.repeats.stop(("record", self.key))
        if self._pump_task is not None and self._pump_task is not asyncio.current_task():
            self._pump_task.cancel()
        self._on_end(state, code, message)
