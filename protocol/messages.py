"""Every message on the bus, as plain data. docs/wire.md has a table of each.

Control messages carry (request_id, attempt); the envelope adds both epochs. Token ids are ints below
2**32; times on the wire are milliseconds left, never a time of day. Field order is the wire format.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.attempt_messages import Cancel, Failed, Finished, Released, Stop, Wanted
from protocol.link_messages import GroupEnded, GroupOffer, GroupTold, GroupWord
from protocol.peers import AttemptRef, Envelope, Key, Peer
from protocol.request_messages import Accepted, Demand, PrefillRequest, Refused, Reserve, Tail
from protocol.status_messages import GatewayStatus, WorkerStatus
from protocol.token_messages import Ack, AckItem, Embedded, Resend, TokenEvent, TokenEvents
from protocol.transfer_messages import Branch, Grant, GrantRequest, KVHandover, LiveChoice, Receipt

__all__ = [
    "TAGS",
    "Accepted",
    "Ack",
    "AckItem",
    "AttemptRef",
    "Branch",
    "Cancel",
    "Demand",
    "Embedded",
    "Envelope",
    "Failed",
    "Finished",
    "GatewayStatus",
    "Grant",
    "GrantRequest",
    "GroupEnded",
    "GroupOffer",
    "GroupTold",
    "GroupWord",
    "KVHandover",
    "Key",
    "LiveChoice",
    "Message",
    "Part",
    "Peer",
    "PrefillRequest",
    "Receipt",
    "Refused",
    "Released",
    "Resend",
    "Reserve",
    "Stop",
    "Tail",
    "TokenEvent",
    "TokenEvents",
    "Wanted",
    "WorkerStatus",
]


@dataclass(frozen=True, slots=True)
class Part:
    """One of ``num_parts`` pieces of a frame longer than the server's payload limit."""

    frame_id: str
    index: int
    num_parts: int
    body: bytes


Message = (
    PrefillRequest
    | Reserve
    | Accepted
    | Refused
    | GrantRequest
    | Grant
    | KVHandover
    | Receipt
    | TokenEvents
    | Ack
    | Resend
    | Stop
    | Cancel
    | Released
    | Finished
    | Failed
    | Embedded
    | Wanted
    | WorkerStatus
    | GatewayStatus
    | Part
    | GroupOffer
    | GroupWord
    | GroupEnded
    | GroupTold
)

TAGS: dict[int, type[Message]] = {
    1: PrefillRequest,
    2: Reserve,
    3: Accepted,
    4: Refused,
    5: GrantRequest,
    6: Grant,
    7: KVHandover,
    8: Receipt,
    9: TokenEvents,
    10: Ack,
    11: Resend,
    12: Stop,
    13: Cancel,
    14: Released,
    15: Finished,
    16: Failed,
    17: Wanted,
    18: WorkerStatus,
    19: GatewayStatus,
    20: Part,
    21: Embedded,
    22: GroupOffer,
    23: GroupWord,
    24: GroupEnded,
    25: GroupTold,
}
