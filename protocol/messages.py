"""Every message on the bus, as plain data. docs/wire.md has a table of each.

Control messages carry (request_id, attempt); the envelope adds both epochs. Token ids are ints below
2**32; times on the wire are milliseconds left, never a time of day. Field order is the wire format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from protocol.link_messages import GroupOffer, GroupRefused, GroupTold, GroupWord
from protocol.sampling import Sampling, TokenLogprob

Key = tuple[str, int]
"""(request_id, attempt): one try of one request, as a key."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One life of one process: its id, and the epoch that tells its starts apart. "" is nobody."""

    id: str = ""
    epoch: str = ""


@dataclass(frozen=True, slots=True)
class Envelope:
    """Who sent a frame, and which life of the receiver it is for ("" = any, for broadcasts)."""

    sender: Peer
    to_epoch: str


@dataclass(frozen=True, slots=True)
class AttemptRef:
    """One try of one request."""

    request_id: str
    attempt: int


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
class Stop:
    """Gateway → worker: this choice ended after ``num_tokens`` tokens; the others go on."""

    request_id: str
    attempt: int
    choice: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Anyone → worker: end this attempt and all before it. An operator → gateway: end the request.

    Answered by Released.
    """

    request_id: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Released:
    """Worker → whoever asked: nothing is held here for this attempt or an earlier one."""

    request_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Finished:
    """Prefill → decode worker: every choice ended at its first token; drop what is held. Answered by Released."""

    request_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Worker → gateway and the other worker: this attempt can't go on. ``code`` is in protocol.errors."""

    request_id: str
    attempt: int
    phase: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Embedded:
    """Worker → gateway: the prompt's vector, float32 in little-endian order, of length 1. Answered by Cancel."""

    request_id: str
    attempt: int
    vector: bytes
    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """Each second, by name: attempts whose holds the sender still wants. Being alive renews nothing."""

    attempts: tuple[AttemptRef, ...]


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """Heartbeat of a worker, each second, to everyone.

    ``state``: "starting", "ready", "draining" or "leaving". ``progress`` moves at least once a layer while
    work runs. ``fingerprint`` must be equal for two workers to be paired; a request that moves
    prefers equal ``numerics`` (kernels, instruction set), with which its tokens come out the same bit for bit.
    """

    role: str
    state: str
    model: str
    max_model_len: int
    weights: str
    layout: str
    fingerprint: str
    numerics: str
    kv_dtype: str
    status_url: str
    progress: int
    busy: bool
    num_running: int
    num_waiting: int
    max_num_seqs: int
    waiting_tokens: int
    total_blocks: int
    free_blocks: int
    reserved_blocks: int
    local_prefill_tokens: int


@dataclass(frozen=True, slots=True)
class GatewayStatus:
    """Heartbeat of a gateway, each second, to everyone."""

    url: str
    num_requests: int


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
    | GroupRefused
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
    24: GroupRefused,
    25: GroupTold,
}
