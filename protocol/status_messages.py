"""Heartbeats."""

from __future__ import annotations

from dataclasses import dataclass


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
