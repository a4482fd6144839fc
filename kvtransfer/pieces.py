"""Pieces: which bytes of a transfer travel together, and the header that names them.

A piece is a range of whole blocks and of heads in one layer. Its header and bytes are digested together
with what both ends know of the transfer, so that right bytes in the wrong place, attempt or epoch fail.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import xxhash

from engine.layout import KVLayout
from kvtransfer.link import Buffer, Frame

PIECE_VERSION = 1
TARGET_PIECE_BYTES = 512 << 10
"""Long enough that a message's fixed cost is small, short enough that a lost one costs little."""
DIGEST_BYTES = 8

_HEADER = struct.Struct("<B16sIQHHHHHII")
HEADER_BYTES = _HEADER.size + DIGEST_BYTES


class PieceError(Exception):
    """A piece that can't be used: damaged, out of range, or of another transfer."""


@dataclass(frozen=True, slots=True)
class PieceRange:
    """Some blocks and heads of one layer.

    Blocks ``[first_block, first_block + num_blocks)`` of a branch's own table, heads
    ``[first_head, first_head + num_heads)``, of layer number ``layer`` within a cache group.
    ``branch`` 0 is the trunk, ``i + 1`` the branch of the i-th choice of the demand.
    """

    branch: int
    group: int
    layer: int
    first_head: int
    num_heads: int
    first_block: int
    num_blocks: int

    def num_bytes(self, layout: KVLayout) -> int:
        """Bytes of K and V."""
        heads = layout.groups[self.group].num_kv_heads
        return layout.layer_block_bytes(self.group) // heads * self.num_heads * self.num_blocks


@dataclass(frozen=True, slots=True)
class Piece:
    """One numbered piece; ``offset`` is the absolute byte of the transfer at which it starts."""

    transfer_id: str
    index: int
    offset: int
    range: PieceRange


def plan_ranges(
    layout: KVLayout, branch: int, first_block: int, num_blocks: int, max_bytes: int
) -> Iterator[PieceRange]:
    """Cut blocks of all layers into ranges of at most ``max_bytes``: by layer, then blocks, then heads.

    Raises ``ValueError`` if one head of one block doesn't fit into ``max_bytes``.
    """
    for number, group in enumerate(layout.groups):
        block_bytes = layout.layer_block_bytes(number)
        head_bytes = block_bytes // group.num_kv_heads
        if head_bytes > max_bytes:
            raise ValueError(f"one head of one block has {head_bytes} bytes, a piece {max_bytes} at the most")
        blocks_a_piece = max(1, max_bytes // block_bytes)
        heads_a_piece = group.num_kv_heads if block_bytes <= max_bytes else max_bytes // head_bytes
        for layer in range(len(group.layers)):
            for start in range(0, num_blocks, blocks_a_piece):
                count = min(blocks_a_piece, num_blocks - start)
                for head in range(0, group.num_kv_heads, heads_a_piece):
                    heads = min(heads_a_piece, group.num_kv_heads - head)
                    yield PieceRange(branch, number, layer, head, heads, first_block + start, count)


def binding(request_id: str, attempt: int, sender_epoch: str, receiver_epoch: str, layout: KVLayout) -> bytes:
    """What both ends know of a transfer and no header carries; part of every digest."""
    text = f"{request_id}|{attempt}|{sender_epoch}|{receiver_epoch}|{layout.fingerprint}"
    return text.encode()


def pack_piece(piece: Piece, bound: bytes, data: Sequence[Buffer]) -> tuple[Frame, bytes]:
    """The frame of a piece, and its digest. ``data`` isn't copied."""
    r = piece.range
    header = _HEADER.pack(
        PIECE_VERSION,
        piece.transfer_id.encode(),
        piece.index,
        piece.offset,
        r.branch,
        r.group,
        r.layer,
        r.first_head,
        r.num_heads,
        r.first_block,
        r.num_blocks,
    )
    digest = _digest(header, bound, data)
    return [header, digest, *data], digest


def unpack_header(frame: bytes | memoryview) -> Piece:
    """The header of a frame, not verified yet. Raises ``PieceError``."""
    if len(frame) < HEADER_BYTES or frame[0] != PIECE_VERSION:
        raise PieceError(f"frame of {len(frame)} bytes is no piece of version {PIECE_VERSION}")
    _, transfer, index, offset, *numbers = _HEADER.unpack_from(frame)
    try:
        transfer_id = transfer.decode("ascii")
    except UnicodeDecodeError as error:
        raise PieceError("transfer id isn't text") from error
    return Piece(transfer_id, index, offset, PieceRange(*numbers))


def verified_data(frame: bytes | memoryview, bound: bytes) -> tuple[memoryview, bytes]:
    """The bytes of a frame whose digest is right, and the digest. Raises ``PieceError``."""
    data = memoryview(frame)[HEADER_BYTES:]
    header, digest = frame[: _HEADER.size], bytes(frame[_HEADER.size : HEADER_BYTES])
    if _digest(header, bound, [data]) != digest:
        raise PieceError("digest is wrong")
    return data, digest


def contents_digest(digests: list[bytes]) -> bytes:
    """One digest over all pieces' digests in order."""
    return xxhash.xxh3_64(b"".join(digests)).digest()


def _digest(header: Buffer, bound: bytes, data: Sequence[Buffer]) -> bytes:
    state = xxhash.xxh3_64(header)
    state.update(bound)
    for stretch in data:
        state.update(stretch)
    return state.digest()
