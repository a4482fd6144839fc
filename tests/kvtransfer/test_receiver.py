"""The receiving side of one hand-over: its sender is kept in credit by what lands, not by the clock."""

from __future__ import annotations

import asyncio

import pytest

from engine.api import Granted
from engine.layout import CacheGroup, KVLayout
from engine.pool_memory import PoolMemory
from kvtransfer.contents import PoolContents
from kvtransfer.credit import CreditPool
from kvtransfer.pieces import TARGET_PIECE_BYTES, Piece, binding, pack_piece, plan_ranges
from kvtransfer.receiver import Receiver, ReceiverParts
from protocol.messages import Peer, Receipt
from runtime.memory_bus import MemoryBus, MemoryHub
from runtime.postbox import Postbox

KEY = ("req-1", 1)
SENDER, RECEIVER = Peer("prefill-1", "1"), Peer("decode-1", "1")
LAYOUT = KVLayout((CacheGroup(tuple(range(8)), 8, 64),), "float32")
NUM_BLOCKS = 16
"""8 MiB."""


class Kept(Postbox):
    """A postbox that keeps what is sent."""

    def __init__(self) -> None:
        super().__init__(MemoryBus(MemoryHub()), RECEIVER)
        self.receipts: list[Receipt] = []

    def send(self, to: Peer, message: object) -> None:
        assert isinstance(message, Receipt)
        self.receipts.append(message)


@pytest.mark.parametrize("num_others", [0, 3, 7, 15])
def test_a_sender_that_uses_up_its_credit_gets_more_without_waiting_for_the_timer(num_others: int) -> None:
    async def check() -> None:
        pool, credit, box = PoolMemory(LAYOUT, NUM_BLOCKS), CreditPool(), Kept()
        for number in range(num_others):
            credit.open(f"other-{number}", lambda: None)
        parts = ReceiverParts(box, PoolContents(pool), credit)
        granted = Granted(KEY, 0, tuple(range(NUM_BLOCKS)), ())
        receiver = Receiver(parts, KEY, SENDER, granted, lambda record: None)
        bound = binding(*KEY, SENDER.epoch, RECEIVER.epoch, LAYOUT)
        allowed, offset = receiver.grant().credit_bytes, 0
        for index, where in enumerate(plan_ranges(LAYOUT, 0, 0, NUM_BLOCKS, TARGET_PIECE_BYTES)):
            data = PoolContents(pool).read(where, granted.trunk)
            assert offset + where.num_bytes(LAYOUT) <= allowed, f"piece {index} would have to wait for the timer"
            frame, _ = pack_piece(Piece(receiver.transfer_id, index, offset, where), bound, data)
            receiver.land(memoryview(b"".join(frame)), Piece(receiver.transfer_id, index, offset, where))
            offset += where.num_bytes(LAYOUT)
            if box.receipts:
                allowed = box.receipts[-1].credit_bytes
        assert offset == NUM_BLOCKS * LAYOUT.block_bytes
        receiver.adopted()

    asyncio.run(check())
