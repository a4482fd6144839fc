"""What the two ends of shared memory say to each other on their socket: four packets.

The sender says hello, with the descriptor of its segment; the receiver answers with the random number that it read
there. Then the sender tells of places, and the receiver how many of them it is done with.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from kvtransfer.segment import Place
from protocol.messages import Peer

HELLO, PROOF, TOLD, DONE = b"H2", b"P2", b"T2", b"D2"
"""The digit is this protocol's version."""
_KIND = 2
_PLACE = struct.Struct("<QqI")
_COUNT = struct.Struct("<Q")
MAX_PLACES = 32
MAX_PACKET_BYTES = 1024
"""A hello has an id and an epoch of 64 characters each at the most."""


class PacketError(Exception):
    """A packet that can't be."""


def kind_of(packet: bytes) -> bytes:
    """Which of the four it is, if it is one."""
    return packet[:_KIND]


def hello(me: Peer) -> bytes:
    """From a sender; goes with its segment's descriptor."""
    return HELLO + f"{me.id} {me.epoch}".encode()


def read_hello(packet: bytes) -> Peer:
    """Who it is. Raises ``PacketError``."""
    try:
        worker_id, epoch = packet[_KIND:].decode("ascii").split(" ")
    except ValueError as error:
        raise PacketError("a hello without a name") from error
    return Peer(worker_id, epoch)


def told(places: Sequence[Place]) -> bytes:
    """Frames lie at ``places``, ``MAX_PLACES`` at the most."""
    return TOLD + b"".join(_PLACE.pack(place.number, place.offset, place.num_bytes) for place in places)


def read_told(packet: bytes) -> Iterator[Place]:
    """The places. Raises ``PacketError``."""
    if (len(packet) - _KIND) % _PLACE.size:
        raise PacketError("a place is cut off")
    return (Place(*numbers) for numbers in _PLACE.iter_unpack(packet[_KIND:]))


def done(count: int) -> bytes:
    """``count`` places in all need be kept no longer."""
    return DONE + _COUNT.pack(count)


def read_done(packet: bytes) -> int:
    """The count. Raises ``PacketError``."""
    if len(packet) != _KIND + _COUNT.size:
        raise PacketError("a count is cut off")
    count: int = _COUNT.unpack_from(packet, _KIND)[0]
    return count
