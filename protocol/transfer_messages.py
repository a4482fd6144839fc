"""A hand-over from a prefill to a decode worker; its contents go by a link."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.peers import Peer
from protocol.request_messages import Demand
from protocol.sampling import Sampling, TokenLogprob


@dataclass(frozen=True, slots=True)
class GrantRequest:
    """Prefill → decode worker: tie blocks for this hand-over. Answered by Grant or Refused.

    ``block_hashes`` name the prompt's full blocks; ``layout`` and ``weights`` are fingerprints.
    """

    request_id: str
    attempt: int
    gateway: Peer
    demand: Demand
    block_hashes: tuple[bytes, ...]
    layout: str
    weights: str
    transfer_ms: int


@dataclass(frozen=True, slots=True)
class Grant:
    """Decode → prefill worker: blocks are tied. ``num_cached_tokens`` leading tokens are here already.

    ``credit_bytes`` is absolute: contents up to that byte of the transfer may be sent.
    """

    request_id: str
    attempt: int
    transfer_id: str
    num_cached_tokens: int
    credit_bytes: int
    max_piece_bytes: int


@dataclass(frozen=True, slots=True)
class Branch:
    """KV of one choice's own tokens: ``[first_token, first_token + num_tokens)`` of its context.

    The choice's block table is the trunk's blocks before ``first_token``, then the branch's.
    """

    choice: int
    first_token: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class LiveChoice:
    """A choice that decodes on: its tail, whose last ``len - num_accepted`` tokens this attempt made."""

    choice: int
    token_ids: tuple[int, ...]
    num_accepted: int
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class KVHandover:
    """Prefill → decode worker: the record. With it and all pieces verified, the request is adopted.

    The trunk holds the KV of the context's first ``trunk_tokens`` tokens, shared by all choices.
    ``contents_digest`` is xxh3-64 over the pieces' digests in order. Answered by Receipts.
    """

    request_id: str
    attempt: int
    transfer_id: str
    gateway: Peer
    prompt_ids: tuple[int, ...]
    choices: tuple[LiveChoice, ...]
    sampling: Sampling
    cache_salt: str
    trunk_tokens: int
    branches: tuple[Branch, ...]
    num_pieces: int
    total_bytes: int
    contents_digest: bytes
    num_cached_tokens: int
    decode_ms: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """Decode → prefill worker: what has landed. ``state`` is a hand-over state.

    All pieces below ``next_piece`` have landed, ``missing`` ones were skipped or damaged;
    ``credit_bytes`` is absolute, as in Grant.
    """

    request_id: str
    attempt: int
    transfer_id: str
    state: str
    next_piece: int
    missing: tuple[int, ...]
    credit_bytes: int
