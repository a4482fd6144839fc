"""Matrix products whose rows don't depend on each other's number.

On a CPU weights are packed once for oneDNN, which is several times faster than ``F.linear`` at small
batches. A row's result is then bit-equal at any batch size from some smallest one on; fewer rows are
computed as that many. Which it is gets probed at load, per shape: on Zen 4 it is 1 up to 1,024 inputs and
2 beyond, where a single row is summed in another order, in float32 and bfloat16 alike.
"""

from __future__ import annotations

import functools
import logging

import torch
from torch import Tensor
from torch.nn import functional

from kvferry_kernels import ops

log = logging.getLogger(__name__)

PROBE_ROWS = 48
"""Rows of the batch that smaller ones are compared with: past the widest register tile."""

PROBE_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33)

MIN_ROWS = (1, 2, 4, 8, 16)
"""Batch sizes tried as the smallest one with bit-equal rows."""


class Linear:
    """y = x W^T + b with ``x`` ``[num_rows, inputs]``, on W's device and in its dtype."""

    __slots__ = ("_bias", "_min_rows", "_packed", "_weight", "weight_bytes")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Take over ``weight`` ``[outputs, inputs]`` and ``bias`` ``[outputs]``."""
        self.weight_bytes = weight.numel() * weight.element_size()
        self._bias = bias
        self._packed = can_pack(weight.device.type, weight.dtype)
        self._weight = pack(weight) if self._packed else weight.contiguous()
        on_cpu = weight.device.type == "cpu"
        self._min_rows = smallest_equal_batch(*weight.shape, weight.dtype) if on_cpu else 1

    def __call__(self, x: Tensor) -> Tensor:
        """Map ``[num_rows, inputs]`` to ``[num_rows, outputs]``."""
        num_rows = x.shape[0]
        if num_rows < self._min_rows:
            x = x[:1].expand(self._min_rows, -1) if num_rows == 1 else _pad(x, self._min_rows)
            return self._multiply(x.contiguous())[:num_rows]
        return self._multiply(x)

    def _multiply(self, x: Tensor) -> Tensor:
        if self._packed:
            return multiply_packed(x, self._weight, self._bias)
        return functional.linear(x, self._weight, self._bias)


class Head:
    """The last product, to logits: float32 ``[num_rows, vocab_size]`` from ``[num_rows, hidden_size]``."""

    __slots__ = ("_linear", "_outputs", "_packed", "weight_bytes")

    def __init__(self, weight: Tensor) -> None:
        """Take over ``weight`` ``[vocab_size, hidden_size]``."""
        compiled = ops.has_head(weight.device.type, weight.dtype)
        self.weight_bytes = weight.numel() * weight.element_size()
        self._outputs = weight.shape[0]
        self._packed = ops.pack_head(weight) if compiled else None
        self._linear = None if compiled else Linear(weight)

    def __call__(self, x: Tensor) -> Tensor:
        """Logits of each row."""
        if self._linear is not None:
            return self._linear(x).float()
        assert self._packed is not None
        return ops.head(x, self._packed, self._outputs)


def can_pack(device: str, dtype: torch.dtype) -> bool:
    """Whether oneDNN can hold weights of this dtype packed on this device."""
    if device != "cpu" or not torch._C._has_mkldnn:
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def pack(weight: Tensor) -> Tensor:
    """Reorder ``[outputs, inputs]`` into oneDNN's own blocks; an opaque tensor."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
    return packed


def multiply_packed(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """X W^T + b with a packed W."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return result


@functools.cache
def smallest_equal_batch(outputs: int, inputs: int, dtype: torch.dtype) -> int:
    """Smallest batch size from which on a row's result is bit-equal, on this CPU, for this shape."""
    weight, x = cancelling(outputs, PROBE_ROWS, inputs, dtype)
    packed = pack(weight) if can_pack("cpu", dtype) else None

    def rows(num_rows: int, start: int) -> Tensor:
        part = x[start : start + num_rows].contiguous()
        if packed is not None:
            return multiply_packed(part, packed, None)
        return functional.linear(part, weight)

    whole = rows(PROBE_ROWS, 0)
    unequal = [n for n in PROBE_SIZES if not torch.equal(rows(n, 1), whole[1 : 1 + n])]
    for smallest in MIN_ROWS:
        if all(n < smallest for n in unequal):
            return smallest
    log.warning(
        "rows of a %d x %d product in %s depend on the batch size here: a token's numbers may depend on its batch",
        outputs,
        inputs,
        dtype,
    )
    return 1


def cancelling(outputs: int, num_rows: int, inputs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A weight ``[outputs, inputs]`` and rows ``[num_rows, inputs]`` whose products are all sums to 0.

    What a product of them holds is rounding noise alone, so that another order of summing shows in every
    number. With ordinary data a bfloat16 result shows it in one of thousands, where it lies near a tie.
    """
    random = torch.Generator().manual_seed(outputs * inputs)
    half = inputs // 2
    shuffle = torch.randperm(half, generator=random)
    weight = torch.zeros(outputs, inputs)
    weight[:, :half] = torch.randn(outputs, half, generator=random)
    weight[:, half : 2 * half] = -weight[:, shuffle]
    x = torch.zeros(num_rows, inputs)
    x[:, :half] = torch.randn(num_rows, half, generator=random)
    x[:, half : 2 * half] = x[:, shuffle]
    return weight.to(dtype), x.to(dtype)


def _pad(x: Tensor, num_rows: int) -> Tensor:
    return functional.pad(x, (0, 0, 0, num_rows - x.shape[0]))
