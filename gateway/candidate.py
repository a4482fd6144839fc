"""What the router knows of a request and of each worker: plain values, so that routing is a function."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from protocol.block_hash import HASH_UNIT

if TYPE_CHECKING:
    from protocol.messages import Peer, WorkerStatus

BLOCK_TOKENS = HASH_UNIT
"""Estimates count blocks of this size. With another size they are off and the worker, which alone
judges, refuses: that costs a round trip and nothing else."""


class Bar(Enum):
    """Why a worker isn't offered a request."""

    NONE = auto()
    NOW = auto()
    """It refused and no heartbeat has shown room since, or it missed beats."""
    OUT = auto()
    """It is kept out since it failed."""
    NEVER = auto()
    """It said that this request can't be served there at all."""


class Shortage(Enum):
    """Why there is no route."""

    FULL = auto()
    """Workers are there, and have no room now."""
    NO_WORKER = auto()
    TOO_LONG = auto()
    """Every worker's context is too short."""
    NEVER_FITS = auto()
    """Every worker that is long enough has said that it never fits."""


@dataclass(frozen=True, slots=True)
class Need:
    """A request as the router sees it.

    ``num_tokens`` are to be prefilled, ``context_len`` is the most that a choice may grow to,
    ``one_token``: no choice has more than one token left to make, or only tokens that are known: no decode worker
    is needed.
    """

    num_tokens: int
    num_choices: int
    context_len: int
    one_token: bool = False

    @property
    def num_blocks(self) -> int:
        """Blocks of the context, and one for each choice."""
        return -(-self.num_tokens // BLOCK_TOKENS) + self.num_choices


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker as the router sees it: its last heartbeat, and what that can't know yet.

    ``extra_*`` is what this gateway sent since, less what ended. ``cached_tokens`` is this request's prefix that was
    sent there before. ``turn`` rises with each request sent there, so that ties go round. ``avoid``:
    it failed this request. ``alike``: its numerics are those of the request's tokens so far. ``prefer``:
    it worked on this request and can use what it has. ``out_since`` is set if it's kept out and may be tried
    when nobody else is left.
    """

    peer: Peer
    status: WorkerStatus
    cached_tokens: int = 0
    extra_tokens: int = 0
    extra_blocks: int = 0
    extra_seqs: int = 0
    turn: int = 0
    avoid: bool = False
    alike: bool = True
    prefer: bool = False
    out_since: float | None = None
    bar: Bar = Bar.NONE

    @property
    def room_blocks(self) -> int:
        """Blocks that nobody has been promised."""
        status = self.status
        room = status.free_blocks - status.reserved_blocks - self.extra_blocks
        return min(room, status.total_blocks)


@dataclass(frozen=True, slots=True)
class Route:
    """Where an attempt goes. ``decode.id`` "" if one token is all; equal peers mean local prefill."""

    path: str
    prefill: Peer
    decode: Peer

    @property
    def local(self) -> bool:
        """One worker does both."""
        return self.prefill == self.decode

    def has(self, peer: Peer) -> bool:
        """``peer`` is one of the workers."""
        return peer in (self.prefill, self.decode)

    @property
    def peers(self) -> tuple[Peer, ...]:
        """The workers, each once."""
        both = (self.prefill, self.decode)
        return tuple(dict.fromkeys(peer for peer in both if peer.id))
