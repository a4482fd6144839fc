"""What happens to messages on a memory hub: lost, doubled, late; pieces may be damaged; or nothing passes at all."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvtransfer.pieces import HEADER_BYTES


@dataclass
class Faults:
    """Odds of each fault, and the seed that makes a run repeatable. Heartbeats are lost in silence alone."""

    seed: int
    lose: float = 0.0
    double: float = 0.0
    late: float = 0.0
    damage: float = 0.0
    silence: bool = False
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def filter(self, subject: str, payload: bytes) -> Iterator[bytes]:
        if self.silence:
            return
        if "contents" in subject and self.random.random() < self.damage:
            payload = self._damaged(payload)
        if "heartbeat" in subject or self.random.random() >= self.lose:
            yield payload
        if self.random.random() < self.double:
            yield payload

    def delay(self, subject: str, payload: bytes) -> float:
        return self.random.expovariate(2.0) if self.random.random() < self.late else 0.0

    def _damaged(self, payload: bytes) -> bytes:
        """Another bit somewhere in the header, or another half of the contents."""
        damaged = bytearray(payload)
        if self.random.random() < 0.3:
            damaged[self.random.randrange(HEADER_BYTES)] ^= 1 << self.random.randrange(8)
        else:
            middle = (HEADER_BYTES + len(payload)) // 2
            damaged[middle:] = self.random.randbytes(len(payload) - middle)
        return bytes(damaged)
