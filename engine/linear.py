"""Matrix products whose rows don't depend on each other's number.

With 8-bit integers (``int8``) our own kernel or its torch twin computes them, with sums that no order changes.

In bfloat16 on a CPU with AVX-512's bfloat16 products our own kernel computes them, each row in one fixed
order. Elsewhere on a CPU weights are packed once for oneDNN, several times faster than ``F.linear`` at
small batches. A row's result is then bit-equal at any batch size from some smallest one on; fewer rows
are computed as that many. Which it is gets probed at load, per shape: on Zen 4 it is 1 up to 1,024 inputs
and 2 beyond, where a single row is summed in another order, in float32 and bfloat16 alike. Where there is no such
size, as with bfloat16 beside AMX, every product is made of calls with the same number of rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from engine.equal_rows import FIXED_ROWS, smallest_equal_batch
from engine.model_sizes import int8_bytes
from engine.multiply import Product, can_pack, in_tiles_of_one_shape, packed, plain
from kvferry_kernels import ops


class Linear:
    """y = x W^T + b with ``x`` ``[num_rows, inputs]``, on W's device and in its dtype."""

    __slots__ = ("_max_rows", "_min_rows", "_multiply", "bias", "tiles", "weight_bytes")

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, int8: bool = False) -> None:
        """Take over ``weight`` ``[outputs, inputs]`` and ``bias`` ``[outputs]``.

        ``tiles`` is the weight as ``ops.pack_linear`` or, with ``int8``, ``ops.pack_linear_int8`` packs it where our
        own kernel multiplies, else None.
        """
        device, dtype = weight.device.type, weight.dtype
        outputs, inputs = weight.shape
        pack = packing(device, dtype, int8=int8)
        if pack is not None:
            self._take_tiles(pack(weight), outputs, inputs, bias, dtype)
            return
        self.tiles: Tensor | None = None
        self.bias = bias
        self.weight_bytes = weight.nbytes + (bias.nbytes if bias is not None else 0)
        self._multiply = packed(weight, bias) if can_pack(device, dtype) else plain(weight, bias)
        self._min_rows, self._max_rows = 1, 0
        if device == "cpu":
            smallest = smallest_equal_batch(outputs, inputs, dtype)
            self._min_rows, self._max_rows = (FIXED_ROWS, FIXED_ROWS) if smallest is None else (smallest, 0)

    @classmethod
    def of_tiles(
        cls,
        tiles: Tensor,
        outputs: int,
        inputs: int,
        bias: Tensor | None,
        dtype: torch.dtype,
        group: int = ops.WHOLE_ROW,
    ) -> Linear:
        """A matrix that ``packing``'s function has packed; results are in ``dtype``.

        ``group`` numbers of its input share a scale, if it is of 8-bit integers: ``ops.WHOLE_ROW`` or ``ops.GROUP``.
        """
        made = cls.__new__(cls)
        made._take_tiles(tiles, outputs, inputs, bias, dtype, group)
        return made

    @classmethod
    def invariant(cls, weight: Tensor, bias: Tensor | None) -> Linear:
        """A matrix ``[outputs, inputs]`` that the GPU's kernel multiplies whose rows don't depend on their number."""
        made = cls.__new__(cls)
        made.tiles, made.bias = None, bias
        made.weight_bytes = weight.nbytes + (bias.nbytes if bias is not None else 0)
        made._multiply = in_tiles_of_one_shape(weight, bias, weight.dtype)
        made._min_rows, made._max_rows = 1, 0
        return made

    def _take_tiles(
        self,
        tiles: Tensor,
        outputs: int,
        inputs: int,
        bias: Tensor | None,
        dtype: torch.dtype,
        group: int = ops.WHOLE_ROW,
    ) -> None:
        self.tiles = tiles
        self.bias = bias
        self.weight_bytes = tiles_bytes(tiles, outputs, inputs) + (bias.nbytes if bias is not None else 0)
        self._multiply = by_tiles(tiles, outputs, bias, dtype, group)
        self._min_rows, self._max_rows = 1, 0

    def __call__(self, x: Tensor) -> Tensor:
        """Map ``[num_rows, inputs]`` to ``[num_rows, outputs]``."""
        if self._max_rows and len(x) > self._max_rows:
            return torch.cat([self._rows(part) for part in torch.split(x, self._max_rows)])
        return self._rows(x)

    def _rows(self, x: Tensor) -> Tensor:
        num_rows = x.shape[0]
        if num_rows < self._min_rows:
            padded = functional.pad(x, (0, 0, 0, self._min_rows - num_rows))
            return self._multiply(padded)[:num_rows]
        return self._multiply(x)


class Head:
    """The last product, to logits: float32 ``[num_rows, vocab_size]`` from ``[num_rows, hidden_size]``."""

    __slots__ = ("_multiply", "weight_bytes")

    def __init__(self, weight: Tensor, *, int8: bool = False) -> None:
        """Take over ``weight`` ``[vocab_size, hidden_size]``."""
        pack = head_packing(weight.device.type, weight.dtype, int8=int8)
        self._multiply: Product
        if pack is None:
            self.weight_bytes = weight.nbytes
            self._multiply = Linear(weight)
        else:
            self._take_tiles(pack(weight), *weight.shape)

    @classmethod
    def of_tiles(cls, tiles: Tensor, vocab_size: int, hidden_size: int) -> Head:
        """A matrix that ``head_packing``'s function has packed."""
        made = cls.__new__(cls)
        made._take_tiles(tiles, vocab_size, hidden_size)
        return made

    @classmethod
    def invariant(cls, weight: Tensor) -> Head:
        """See ``Linear.invariant``."""
        made = cls.__new__(cls)
        made.weight_bytes, made._multiply = weight.nbytes, in_tiles_of_one_shape(weight, None, torch.float32)
        return made

    def _take_tiles(self, tiles: Tensor, vocab_size: int, hidden_size: int) -> None:
        self.weight_bytes = tiles_bytes(tiles, vocab_size, hidden_size)
        self._multiply = by_tiles(tiles, vocab_size, None, torch.float32)

    def __call__(self, x: Tensor) -> Tensor:
        """Logits of each row."""
        return self._multiply(x).float()


def packing(device: str, dtype: torch.dtype, *, int8: bool = False) -> Callable[[Tensor], Tensor] | None:
    """How weights are packed where our own kernel multiplies; None where it doesn't."""
    if int8:
        return ops.pack_linear_int8
    return ops.pack_linear if dtype == torch.bfloat16 and ops.has_fast_linear(device) else None


def head_packing(device: str, dtype: torch.dtype, *, int8: bool = False) -> Callable[[Tensor], Tensor] | None:
    """The same for logits, which aren't rounded: our own kernel computes them wherever it can."""
    if int8:
        return ops.pack_linear_int8
    return ops.pack_linear if dtype == torch.bfloat16 and ops.has_linear(device) else None


def tiles_bytes(tiles: Tensor, outputs: int, inputs: int) -> int:
    """Bytes of the matrix, without what fills up tiles."""
    return int8_bytes(outputs, inputs) if tiles.dtype == torch.uint8 else outputs * inputs * tiles.element_size()


def by_tiles(
    tiles: Tensor, outputs: int, bias: Tensor | None, dtype: torch.dtype, group: int = ops.WHOLE_ROW
) -> Product:
    """Multiply by our own kernel, with results in ``dtype``; ``group`` as for ``Linear.of_tiles``."""
    if tiles.dtype == torch.uint8:
        return lambda x: ops.linear_int8(ops.quantize_rows(x, group), tiles, outputs, bias, dtype)
    return lambda x: ops.linear(x, tiles, outputs, bias, dtype)


def products(device: str, dtype: torch.dtype, *, int8: bool = False) -> str:
    """Name what multiplies: workers of one name (and one torch) compute the same bits."""
    if int8:
        return "int8"
    if dtype == torch.bfloat16 and ops.has_fast_linear(device):
        return "own"
    if device != "cpu":
        return "torch"
    amx = "-amx" if torch.cpu._is_amx_tile_supported() else ""
    library = "onednn" if can_pack(device, dtype) else "torch"
    return f"{library}-{torch.backends.cpu.get_cpu_capability()}{amx}".lower()
