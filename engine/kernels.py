"""The operations that a layer is made of, for one device."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from engine.device import INTERPRETER, has_gpu_kernels
from engine.errors import ModelError
from kvferry_kernels import ops

Attention = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, float], Tensor]
"""One batch's attention: see ``ops.paged_attention``."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """The same signatures on every device: those of ``kvferry_kernels.ops``.

    ``attention`` makes a batch's attention, once for all layers, of its sequences' new and whole lengths, how many
    query heads share a KV head, the dtype of queries, and the device.
    """

    variant: Callable[[torch.device], str]
    rms_norm: Callable[..., Tensor]
    silu_and_mul: Callable[[Tensor], Tensor]
    rope_and_cache: Callable[..., Tensor]
    attention: Callable[[Sequence[int], Sequence[int], int, torch.dtype, torch.device], Attention]

    @classmethod
    def of(cls, device: str, *, batch_invariant: bool = False) -> Kernels:
        """Those of a device by its name; a CPU's are always ``batch_invariant``.

        Triton is imported for a GPU's alone; ModelError if it isn't there.
        """
        if has_gpu_kernels(device):
            if device == INTERPRETER:
                os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is imported
            try:
                from kvferry_kernels.gpu import ops as gpu
            except ImportError as error:
                raise ModelError(f"--device {device} needs triton ({error}): pip install 'kvferry[gpu]'") from error
            attention = partial(gpu.BatchAttention, in_tiles=batch_invariant)
            return cls(gpu.variant, gpu.rms_norm, gpu.silu_and_mul, gpu.rotate_and_cache, attention)
        return cls(_cpu_variant, ops.rms_norm, ops.silu_and_mul, ops.rope_and_cache, _cpu_attention)


def _cpu_variant(device: torch.device) -> str:
    return ops.variant(device.type)


def _cpu_attention(*lens: object) -> Attention:
    return ops.paged_attention
