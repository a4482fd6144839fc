"""The operations of a decoder layer on a GPU: as ``kvferry_kernels.ops``, over a cache in plain order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from kvferry_kernels.gpu import card
from kvferry_kernels.gpu.activation import silu_and_mul
from kvferry_kernels.gpu.attention import Attention
from kvferry_kernels.gpu.norm import rms_norm
from kvferry_kernels.gpu.paged_cache import PagedCache
from kvferry_kernels.gpu.paged_decode import paged_decode
from kvferry_kernels.gpu.paged_prefill import paged_prefill
from kvferry_kernels.gpu.query_tiles import query_tiles
from kvferry_kernels.gpu.rotary_cache import rotate_and_cache

__all__ = ["BatchAttention", "rms_norm", "rotate_and_cache", "silu_and_mul", "variant"]


def variant(device: torch.device) -> str:
    """Name the kernels used on a device: workers of one name compute the same bits."""
    where = "sm_{}{}".format(*card.capability(device)) if device.type == "cuda" else "interpreted"
    return f"triton-{triton.__version__}-{where}"


class BatchAttention:
    """How the sequences of one batch attend, in every layer.

    Those with one new token by the kernel that splits long contexts, the others in tiles of queries. The two sum in
    different orders, so a token's bits depend on whether it came alone, but not on who else is in the batch; with
    ``in_tiles`` all go in tiles, and bits depend on a token's own context alone.
    """

    def __init__(
        self,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        group: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        in_tiles: bool = False,
    ) -> None:
        """``query_lens``, ``context_lens``: each sequence's new tokens and all. ``group``: query heads of a KV head.

        ``dtype``: of queries.
        """
        lens = list(zip(query_lens, context_lens, strict=True))
        alone = [seq for seq, (new, _) in enumerate(lens) if new == 1 and not in_tiles]
        self._longest = max((context_lens[seq] for seq in alone), default=0)
        self._all_alone = len(alone) == len(lens)
        if not self._all_alone:  # else nothing is copied to the device, which couldn't be recorded as a graph
            self._alone = torch.tensor(alone, device=device)
            others = [0 if new == 1 and not in_tiles else new for new in query_lens]
            self._tiles = query_tiles(others, context_lens, group, dtype).to(device)

    def __call__(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_tables: Tensor,
        query_starts: Tensor,
        context_lens: Tensor,
        scale: float,
    ) -> Tensor:
        """Attend in one layer: see ``kvferry_kernels.ops.paged_attention``."""
        cache, attention = PagedCache(k_cache, v_cache), Attention(scale)
        if self._all_alone:
            return paged_decode(q, cache, block_tables, context_lens, attention, self._longest)
        out = paged_prefill(q, cache, block_tables, query_starts, context_lens, self._tiles, attention)
        alone = self._alone
        if len(alone):
            rows = query_starts[alone]
            out[rows] = paged_decode(q[rows], cache, block_tables[alone], context_lens[alone], attention, self._longest)
        return out
