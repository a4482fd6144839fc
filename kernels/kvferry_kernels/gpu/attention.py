"""What a model asks of its attention, and what both attention kernels check of their batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvferry_kernels.gpu.operand import FLOATS
from kvferry_kernels.gpu.paged_cache import PagedCache

MAX_GROUP = 64
"""Query heads of one KV head: rows of one tile."""

MAX_HEAD_DIM = 256


@dataclass(frozen=True, slots=True)
class Attention:
    """How scores are made.

    ``scale``: factor of q k, usually head_dim^-0.5. ``window``: how many of the latest tokens a query sees, itself
    included; 0 for all. ``soft_cap``: if positive, a score s becomes soft_cap * tanh(s / soft_cap).
    ``sinks``: float32 ``[heads]``, a learned logit of each head that takes part in the softmax and has no value.
    """

    scale: float
    window: int = 0
    soft_cap: float = 0.0
    sinks: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse what has no meaning."""
        if self.window < 0 or self.soft_cap < 0:
            raise ValueError(f"window {self.window}, soft cap {self.soft_cap}")


def check_batch(q: Tensor, cache: PagedCache, tables: Tensor, context_lens: Tensor, attention: Attention) -> None:
    """Refuse (ValueError) what would make a kernel read or write beside its tensors. See paged_decode for shapes."""
    heads, dim = q.shape[1:]
    if dim != cache.head_dim or heads % cache.kv_heads or heads // cache.kv_heads > MAX_GROUP or dim > MAX_HEAD_DIM:
        raise ValueError(f"{heads} heads of {dim} with {cache.kv_heads} of {cache.head_dim}")
    if q.dtype not in FLOATS or (cache.k.dtype in FLOATS and cache.k.dtype != q.dtype):
        raise ValueError(f"queries of {q.dtype} with a cache of {cache.k.dtype}")
    if tables.ndim != 2 or context_lens.shape != tables.shape[:1]:
        raise ValueError(f"block tables {list(tables.shape)} with contexts {list(context_lens.shape)}")
    check_flat("q", q, q.dtype, cache)
    check_flat("block tables", tables, torch.int32, cache)
    check_flat("context lengths", context_lens, torch.int32, cache)
    if attention.sinks is not None:
        check_flat("sinks", attention.sinks, torch.float32, cache)
        if attention.sinks.shape != (heads,):
            raise ValueError(f"sinks {list(attention.sinks.shape)} with {heads} heads")


def check_flat(name: str, tensor: Tensor, dtype: torch.dtype, cache: PagedCache) -> None:
    """Refuse (ValueError) a tensor that isn't contiguous, on the cache's device and of a dtype."""
    if tensor.dtype != dtype or tensor.device != cache.k.device or not tensor.is_contiguous():
        raise ValueError(f"{name}: {tensor.dtype} on {tensor.device}, contiguous or not")
