"""A request on its way to workers, and whether they take it."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.peers import Peer
from protocol.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Tail:
    """Tokens that a live choice has accepted so far."""

    choice: int
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request will need on a decode worker, in tokens; the worker counts blocks itself.

    ``tail_lens[i]`` belongs to choice number ``choices[i]``.
    """

    num_prompt_tokens: int
    choices: tuple[int, ...]
    tail_lens: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class PrefillRequest:
    """Gateway → prefill worker: compute the prompt and hand over to ``decode``.

    ``decode.id == ""``: nothing will be left to hand over (one token). ``decode == prefill``: local
    prefill on a decode worker. Answered by Accepted or Refused.
    """

    request_id: str
    attempt: int
    prefill: Peer
    decode: Peer
    prompt_ids: tuple[int, ...]
    tails: tuple[Tail, ...]
    sampling: Sampling
    cache_salt: str
    queue_ms: int
    prefill_ms: int
    transfer_ms: int
    decode_ms: int


@dataclass(frozen=True, slots=True)
class Reserve:
    """Gateway → decode worker: count this request in. Answered by Accepted or Refused."""

    request_id: str
    attempt: int
    prefill: Peer
    demand: Demand
    queue_ms: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """Worker → gateway: the attempt is held here. ``phase`` is "prefill" or "decode"."""

    request_id: str
    attempt: int
    phase: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Worker → whoever asked: the attempt isn't held here and never was."""

    request_id: str
    attempt: int
    phase: str
    code: str
    message: str
