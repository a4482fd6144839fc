"""What links of two workers say to each other where their contents go by connections of their own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupOffer:
    """Prefill → decode worker: make a process group of two with me, as rank 1. Answered by GroupWords, or GroupEnded.

    ``group`` is 16 hex digits. ``backend`` is "gloo" or "nccl"; ``device`` names the sender's GPU ("" for a CPU):
    NCCL takes no two ranks of one.
    """

    group: str
    backend: str
    device: str


@dataclass(frozen=True, slots=True)
class GroupWord:
    """Either → the other: an entry of the group's store, by which its backend finds the other rank."""

    group: str
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class GroupEnded:
    """Either → the other: no such group is made, or it is over."""

    group: str
    reason: str


@dataclass(frozen=True, slots=True)
class GroupTold:
    """Prefill → decode worker: frames of so many bytes come through the group, the first with this number.

    Frames of a group are numbered from 0 without a gap; a receiver that misses one ends the group.
    """

    group: str
    first: int
    sizes: tuple[int, ...]
