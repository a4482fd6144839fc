"""How a product of 8-bit numbers is cut into programs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tiles:
    """What one program computes, ``rows`` times ``halves`` * ``outputs``, and how many inputs it takes at once."""

    rows: int
    outputs: int
    halves: int
    inputs: int
    num_warps: int
    num_stages: int

    def programs(self, num_rows: int, outputs: int) -> int:
        """How many there are."""
        return -(-num_rows // self.rows) * -(-outputs // (self.outputs * self.halves))


FEW_ROWS = Tiles(16, 32, 1, 256, 4, 6)
SOME_ROWS = Tiles(64, 32, 1, 256, 4, 4)
WIDE = Tiles(64, 128, 1, 128, 4, 4)
SQUARE = Tiles(128, 128, 1, 128, 8, 4)
LARGE = Tiles(128, 128, 2, 128, 8, 3)
"""From the least to the most products for each byte that is read. The sums of two halves are made one after the other:
what the tensor cores have added so far takes as many registers as the sums themselves."""

WAVE = 128
"""As many programs keep a card's multiprocessors busy: A100 has 108, H100 132, B200 148."""


def tiles_for(num_rows: int, outputs: int, *, is_widened: bool, batch_invariant: bool) -> Tiles:
    """The largest tiles of which there are enough; ``batch_invariant`` has the same for any number of rows."""
    if batch_invariant:
        return WIDE
    if num_rows <= FEW_ROWS.rows:
        return FEW_ROWS
    for tiles in (SQUARE, WIDE) if is_widened else (LARGE, SQUARE, WIDE):  # widened, large ones don't fit registers
        if tiles.rows <= max(num_rows, WIDE.rows) and tiles.programs(num_rows, outputs) >= WAVE:
            return tiles
    return SOME_ROWS
