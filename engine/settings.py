"""What one engine is told when it is made. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What one engine is told.

    ``max_num_seqs`` sequences and ``max_num_batched_tokens`` tokens a step at most: raising them gives
    more tokens per second and a longer step. What has to give way and has more than ``max_recompute_tokens``
    tokens is given back rather than computed again here; -1 is no limit. ``weights`` and ``kv_dtype`` go
    into the names of blocks. Beside decoding sequences prompts get no more tokens a step than fit into
    ``itl_limit_s`` seconds, as far as earlier steps tell; 0 is no limit.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_prefix_caching: bool = True
    weights: str = ""
    kv_dtype: str = "float32"
    max_recompute_tokens: int = -1
    itl_limit_s: float = 0.0

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for a limit with which nothing would ever run."""
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
