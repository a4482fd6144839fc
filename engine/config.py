"""What an engine process is told when it starts. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

AUTO_LEN = -1
"""As ``max_model_len``: the longest of which ``auto_concurrency`` requests fit into the pool at once."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine; sizes in bytes, lengths in tokens. 0 or "auto" lets the engine choose; -1 is no limit.

    ``max_model_len`` 0 is the model's own, ``AUTO_LEN`` what memory allows.
    """

    model: str
    worker_id: str
    dtype: str = "auto"
    device: str = "auto"
    quantization: str = "none"
    max_model_len: int = 0
    auto_concurrency: int = 4
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    gpu_memory_utilization: float = 0.9
    kv_cache_memory_bytes: int = 0
    enable_prefix_caching: bool = True
    host_workers: int = 1
    num_threads: int = 0
    packed_dir: str = ""
    cores_file: str = ""
    itl_limit_ms: float = 50.0
    enforce_eager: bool = False
    batch_invariant: bool = False
    max_recompute_tokens: int = -1
    log_level: str = "info"
