"""Pieces: they cover a transfer exactly, and a digest ties bytes to their place."""

import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.layout import CacheGroup, KVLayout
from engine.pool_memory import PoolMemory
from kvtransfer.contents import PoolContents
from kvtransfer.pieces import (
    HEADER_BYTES,
    Piece,
    PieceError,
    PieceRange,
    binding,
    pack_piece,
    plan_ranges,
    unpack_header,
    verified_data,
)

layouts = st.builds(
    lambda layers, heads, dim, dtype: KVLayout((CacheGroup(tuple(range(layers)), heads, dim),), dtype),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([8, 16]),
    st.sampled_from(["float32", "bfloat16"]),
)
LAYOUT = KVLayout((CacheGroup((0, 1), 2, 8),), "float32")


def test_blocks_of_two_groups_are_counted_together() -> None:
    layout = KVLayout((CacheGroup((0, 2), 2, 8), CacheGroup((1,), 4, 16)), "bfloat16")
    assert layout.block_bytes == 2 * (2 * 2 * 8 * 16 * 2) + 2 * 4 * 16 * 16 * 2
    assert layout.token_bytes * 16 == layout.block_bytes


@given(layouts, st.integers(0, 5), st.integers(1, 9), st.integers(0, 40_000))
def test_ranges_cover_every_block_layer_and_head_once(layout: KVLayout, first: int, count: int, room: int) -> None:
    least = layout.layer_block_bytes(0) // layout.groups[0].num_kv_heads
    ranges = list(plan_ranges(layout, 0, first, count, least + room))
    cells = [
        cell
        for r in ranges
        for cell in itertools.product(
            [r.layer],
            range(r.first_head, r.first_head + r.num_heads),
            range(r.first_block, r.first_block + r.num_blocks),
        )
    ]
    group = layout.groups[0]
    want = itertools.product(range(len(group.layers)), range(group.num_kv_heads), range(first, first + count))
    assert sorted(cells) == sorted(want)
    assert all(r.num_bytes(layout) <= least + room for r in ranges)
    assert sum(r.num_bytes(layout) for r in ranges) == count * layout.block_bytes


def test_a_head_that_fits_no_piece_is_refused() -> None:
    with pytest.raises(ValueError, match="one head"):
        list(plan_ranges(LAYOUT, 0, 0, 1, 100))


def filled_pool(num_blocks: int) -> PoolMemory:
    pool = PoolMemory(LAYOUT, num_blocks)
    pool.buffer[:] = bytes(i * 7 % 251 for i in range(len(pool.buffer)))
    return pool


def test_contents_come_out_of_one_pool_and_into_other_blocks_of_another() -> None:
    here, there = filled_pool(6), PoolMemory(LAYOUT, 9)
    source, target = (4, 1, 5), (8, 0, 3)
    for where in plan_ranges(LAYOUT, 0, 0, 3, 3000):
        data = PoolContents(here).read(where, source)
        PoolContents(there).write(where, target, memoryview(b"".join(data)))
    for mine, yours in zip(source, target, strict=True):
        for a, b in zip(here.layers(0), there.layers(0), strict=True):
            assert (a.k[mine] == b.k[yours]).all()
            assert (a.v[mine] == b.v[yours]).all()


@pytest.mark.parametrize(
    "where",
    [
        PieceRange(0, 1, 0, 0, 1, 0, 1),
        PieceRange(0, 0, 2, 0, 1, 0, 1),
        PieceRange(0, 0, 0, 1, 2, 0, 1),
        PieceRange(0, 0, 0, 0, 0, 0, 1),
        PieceRange(0, 0, 0, 0, 1, 2, 2),
        PieceRange(0, 0, 0, 0, 1, 0, 0),
        PieceRange(0, 0, 0, 0, 1, 0, 1),
    ],
)
def test_a_range_outside_layout_or_table_is_refused(where: PieceRange) -> None:
    contents = PoolContents(PoolMemory(LAYOUT, 4))
    with pytest.raises(PieceError):
        contents.write(where, (1, 2, 3), memoryview(b""))


PIECE = Piece("0123456789abcdef", 3, 4096, PieceRange(0, 0, 1, 0, 2, 4, 5))
BOUND = binding("req", 2, "p-epoch", "d-epoch", LAYOUT)


def read(frame: bytes) -> tuple[Piece, memoryview]:
    return unpack_header(frame), verified_data(frame, BOUND)[0]


def test_a_piece_comes_back_with_its_header_and_bytes() -> None:
    parts, digest = pack_piece(PIECE, BOUND, [b"cont", b"ents"])
    frame = b"".join(parts)
    assert unpack_header(frame) == PIECE
    data, again = verified_data(frame, BOUND)
    assert bytes(data) == b"contents"
    assert again == digest


def test_any_flipped_bit_is_found() -> None:
    frame = b"".join(pack_piece(PIECE, BOUND, [b"contents"])[0])
    for position in range(len(frame) * 8):
        damaged = bytearray(frame)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(PieceError):
            read(bytes(damaged))


@pytest.mark.parametrize(
    "other",
    [
        binding("reg", 2, "p-epoch", "d-epoch", LAYOUT),
        binding("req", 3, "p-epoch", "d-epoch", LAYOUT),
        binding("req", 2, "q-epoch", "d-epoch", LAYOUT),
        binding("req", 2, "p-epoch", "e-epoch", LAYOUT),
    ],
)
def test_right_bytes_of_another_attempt_or_epoch_are_refused(other: bytes) -> None:
    frame = b"".join(pack_piece(PIECE, BOUND, [b"contents"])[0])
    with pytest.raises(PieceError, match="digest"):
        verified_data(frame, other)


@given(st.binary(max_size=HEADER_BYTES + 4))
def test_random_frames_are_refused(frame: bytes) -> None:
    with pytest.raises(PieceError):
        read(frame)


def test_a_pool_can_be_mapped_a_second_time_by_its_descriptor() -> None:
    one = PoolMemory(LAYOUT, 3)
    other = PoolMemory(LAYOUT, 3, os.dup(one.fd))
    one.layers(0)[1].v[2, 1, 0] = 77
    one.count_layers(1)
    assert other.layers(0)[1].v[2, 1, 0] == 77
    assert other.progress == 1
    with pytest.raises(ValueError, match="layout needs"):
        PoolMemory(LAYOUT, 4, one.fd)
