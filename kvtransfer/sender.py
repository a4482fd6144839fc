"""The prefill worker's end of one transfer: asks for a grant, pushes pieces as blocks fill, then the record."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from engine.api import Computed
from kvtransfer.contents import PoolContents
from kvtransfer.link import Link
from kvtransfer.piece_queue import PieceQueue, Planned
from kvtransfer.pieces import HEADER_BYTES, binding, pack_piece
from protocol.errors import Code
from protocol.handover import State
from protocol.messages import Grant, GrantRequest, KVHandover, Peer, Receipt
from runtime.postbox import Postbox
from runtime.repeats import Repeats

MAX_SENDS = 4
"""A piece is sent once and asked for again three times at the most; then the transfer has failed."""

MAX_SAME_WAY = 2
"""Then it takes another way where the link has one: the first may be stuck without knowing."""

_ENDS = frozenset({State.ADOPTED, State.FAILED, State.REFUSED, State.CANCELLED, State.RELEASED})


@dataclass(frozen=True, slots=True)
class SenderParts:
    """What senders of one worker share."""

    postbox: Postbox
    repeats: Repeats
    link: Link
    contents: PoolContents


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
        self._on_end = on_end
        self._grant: Grant | None = None
        self._pieces = PieceQueue(parts.contents.layout)
        self._record: Callable[[Grant, int, int, bytes], KVHandover] | None = None
        self._loop = asyncio.get_running_loop()
        me = parts.postbox.me
        self._bound = binding(*self.key, me.epoch, to.epoch, parts.contents.layout)
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
        return self._pieces.total_bytes

    def computed(self, branch: int, done: Computed) -> None:
        """Blocks of a branch are final. ``branch`` is 0 for the trunk, else the choice's position plus one."""
        self._pieces.computed(branch, done)
        self._start_pump()

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
        self._pieces.open(grant, self._parts.link.max_frame_bytes - HEADER_BYTES)
        self.state = State.GRANTED
        self._start_pump()

    def receipt(self, receipt: Receipt) -> None:
        """Credit, missing pieces, or the news that the other side has it all."""
        if self._grant is None or receipt.transfer_id != self._grant.transfer_id:
            return
        if receipt.state == State.ADOPTED:
            self._end(State.ADOPTED, "", "")
            return
        self._pieces.heard(receipt)
        self._start_pump()

    def fail(self, code: str, message: str, state: State = State.FAILED) -> None:
        """The transfer is over from outside: refused, cancelled, the peer's death."""
        self._end(state, code, message)

    def _repeat(self, name: str, message: GrantRequest | KVHandover) -> None:
        """Send until it is answered; the transfer's own deadline ends it otherwise."""
        send = self._parts.postbox.send
        to = self.to
        self._parts.repeats.start((name, self.key), lambda: send(to, message), math.inf, lambda: None)

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
        if self.state is State.SENDING and self._pieces.all_sent:
            self._send_record()

    def _send_burst(self) -> bool:
        """Send as much as goes between two looks at the loop, a piece at the least; whether there was any."""
        num_bytes = num_pieces = 0
        while self.state not in _ENDS and (planned := self._pieces.due(self._loop.time())) is not None:
            self._send_piece(planned)
            num_bytes += planned.num_bytes
            num_pieces += 1
            if num_bytes >= self._parts.link.burst_bytes:
                break
        return num_pieces > 0

    def _send_piece(self, planned: Planned) -> None:
        piece = planned.piece
        if planned.num_sends == MAX_SENDS:
            self._end(State.FAILED, Code.TRANSFER, f"piece {piece.index} didn't land in {MAX_SENDS} tries")
            return
        data = self._parts.contents.read(piece.range, self._pieces.table(planned))
        frame, digest = pack_piece(piece, self._bound, data)
        self._pieces.sent(planned, digest, self._loop.time())
        self._links.add(self._parts.link.send(self.to, frame, again=planned.num_sends > MAX_SAME_WAY))

    def _send_record(self) -> None:
        if self._record is None or self._grant is None:
            return
        self.state = State.COMPLETE
        pieces = self._pieces
        record = self._record(self._grant, pieces.num_pieces, pieces.total_bytes, pieces.digest())
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
