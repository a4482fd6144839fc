"""One layer's K and V on a GPU, in blocks, and how their numbers are stored."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvferry_kernels.gpu import card
from kvferry_kernels.gpu.operand import FLOATS, check

PLAIN, FP8, FP8_BITS, INT8 = range(4)
"""How numbers lie in a cache, as the kernels are told: in the queries' dtype, as float8 e4m3 that the card converts
by itself, as the same that it doesn't, or as integers of 8 bits."""

AXES = 4
BLOCK_SIZES = (16, 32)


@dataclass(frozen=True, slots=True)
class PagedCache:
    """One layer's blocks: tokens of one block and head lie together, numbers of one token beside each other.

    ``k``, ``v``: ``[num_blocks, kv_heads, block_size, head_dim]``, contiguous, block size 16 or 32, of

    - bfloat16, float16 or float32, the dtype of the queries: no scales; or
    - float8_e4m3fn: a number is about what is stored * ``scales``, float32 ``[kv_heads]``. They are fixed before
      anything is stored, from statistics or at 1, so that a block's bytes don't depend on its neighbors; or
    - int8, from -127 to 127: a number is about integer * ``scales``, float32 ``[num_blocks, kv_heads, block_size]``:
      one for each token and head, which ``write_cache`` makes of the numbers themselves.

    ValueError if a tensor is of another shape, dtype or device, or not contiguous: kernels would write beside it.
    """

    k: Tensor
    v: Tensor
    k_scales: Tensor | None = None
    v_scales: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse what kernels can't take."""
        dtype = self.k.dtype
        if dtype not in (*FLOATS, torch.float8_e4m3fn, torch.int8):
            raise ValueError(f"a cache of {dtype}")
        if self.k.ndim != AXES or self.block_size not in BLOCK_SIZES:
            raise ValueError(f"K of shape {list(self.k.shape)}")
        check("V", self.v, self.k.shape, (dtype,), self.k.device)
        check("K", self.k, self.k.shape, (dtype,), self.k.device)
        scales = self._scales_shape()
        for name, tensor in (("scales of K", self.k_scales), ("scales of V", self.v_scales)):
            if (tensor is None) != (scales is None):
                raise ValueError(f"{name} with a cache of {dtype}" if tensor is not None else f"no {name}")
            if tensor is not None and scales is not None:
                check(name, tensor, scales, (torch.float32,), self.k.device)

    @property
    def num_blocks(self) -> int:
        """Blocks, whether used or not."""
        return self.k.shape[0]

    @property
    def kv_heads(self) -> int:
        """Heads of K and V."""
        return self.k.shape[1]

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.k.shape[2]

    @property
    def head_dim(self) -> int:
        """Numbers of a token and head."""
        return self.k.shape[3]

    @property
    def kind(self) -> int:
        """How kernels read it on its device."""
        return stored_kind(self.k.dtype, card.capability(self.k.device))

    @property
    def stored(self) -> tuple[Tensor, Tensor]:
        """K and V as kernels take them: one that can't convert e4m3 gets its bits."""
        if self.kind == FP8_BITS:
            return self.k.view(torch.uint8), self.v.view(torch.uint8)
        return self.k, self.v

    def _scales_shape(self) -> torch.Size | None:
        if self.k.dtype in FLOATS:
            return None
        return self.k.shape[:3] if self.k.dtype == torch.int8 else self.k.shape[1:2]


def stored_kind(dtype: torch.dtype, capability: tuple[int, int]) -> int:
    """How kernels read a cache of a dtype: PLAIN, FP8, FP8_BITS or INT8."""
    if dtype == torch.float8_e4m3fn:
        return FP8 if capability >= card.CONVERTS_FP8 else FP8_BITS
    return INT8 if dtype == torch.int8 else PLAIN
