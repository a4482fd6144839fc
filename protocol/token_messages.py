"""What was made of a request, on its way to its gateway, and what of it has arrived."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from protocol.sampling import TokenLogprob


class TokenEvent(NamedTuple):
    """New tokens of one choice, the first of them at ``first_index`` of its output.

    ``finish_reason`` "" means more will come; else ``num_tokens`` is the choice's final length.
    ``stop_token`` is the id that ended it, -1 if none did. ``num_cached_tokens`` are prompt tokens
    whose compute was skipped.
    """

    request_id: str
    attempt: int
    choice: int
    first_index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: str
    stop_token: int
    num_tokens: int
    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class TokenEvents:
    """Worker → gateway: one message per gateway process and step. ``phase`` names the emitter's."""

    phase: str
    events: tuple[TokenEvent, ...]


class AckItem(NamedTuple):
    """Tokens of one choice below ``next_index`` are accepted; its end too once that is ``num_tokens + 1``."""

    request_id: str
    attempt: int
    choice: int
    next_index: int


@dataclass(frozen=True, slots=True)
class Ack:
    """Gateway → worker: tokens that need not be kept any more."""

    items: tuple[AckItem, ...]


@dataclass(frozen=True, slots=True)
class Resend:
    """Gateway → worker: tokens from ``from_index`` on didn't arrive."""

    request_id: str
    attempt: int
    choice: int
    from_index: int


@dataclass(frozen=True, slots=True)
class Embedded:
    """Worker → gateway: the prompt's vector, float32 in little-endian order, of length 1. Answered by Cancel."""

    request_id: str
    attempt: int
    vector: bytes
    num_cached_tokens: int
