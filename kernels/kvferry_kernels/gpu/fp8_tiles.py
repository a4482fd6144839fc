"""How a product of 8-bit numbers is cut into programs."""

from __future__ import annotations

from dataclasses import dataclass

from kvferry_kernels.gpu.card import CONVERTS_FP8

WIDENED, IN_PARTS, STRAIGHT = range(3)
"""How tensor cores are used. Before compute capability 8.9 they multiply the same numbers as float16. Later ones
multiply e4m3, but before 10.0 what they have added up keeps fewer bits than float32, so it is added to a sum outside
them after each tile of inputs. From then on they add up all."""

KEEPS_BITS = (10, 0)
"""The first compute capability whose tensor cores add products of e4m3 in float32."""


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
SOME_ROWS = Tiles(64, 32, 1, 128, 4, 8)
WIDE = Tiles(64, 128, 1, 128, 4, 4)
SQUARE = Tiles(128, 128, 1, 128, 8, 4)
LARGE = Tiles(128, 128, 2, 128, 8, 3)
"""From the least to the most products for each byte that is read. The sums of two halves are made one after the other:
what the tensor cores have added so far takes as many registers as the sums themselves."""

WAVE = 128
"""As many programs keep a card's multiprocessors busy: A100 has 108, H100 132, B200 148."""


def way_of(capability: tuple[int, int]) -> int:
    """How tensor cores of a card are used."""
    if capability < CONVERTS_FP8:
        return WIDENED
    return IN_PARTS if capability < KEEPS_BITS else STRAIGHT


def large_tiles(way: int) -> tuple[Tiles, ...]:
    """Tiles for many rows, from the largest on: widened, the largest don't fit into registers."""
    return (SQUARE, WIDE) if way == WIDENED else (LARGE, SQUARE, WIDE)


def tiles_for(num_rows: int, outputs: int, *, way: int, batch_invariant: bool) -> Tiles:
    """The largest tiles of which there are enough.

    ``batch_invariant`` has the same for any number of rows, which takes longer where those are few or very many.
    """
    if batch_invariant:
        return WIDE
    if num_rows <= FEW_ROWS.rows:
        return FEW_ROWS
    for tiles in large_tiles(way):
        if tiles.rows <= max(num_rows, WIDE.rows) and tiles.programs(num_rows, outputs) >= WAVE:
            return tiles
    return SOME_ROWS
