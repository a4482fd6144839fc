"""Decoder layers of the Llama family in one compiled call: ops' operations in one parallel region, with their bits.

Only for bfloat16, with all matrices packed by ``ops.pack_linear`` or all by ``ops.pack_linear_int8``. What each
operation does stands in ops.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvferry_kernels import ops

INT64, FLOAT, POINTER = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """Sizes of a model, and its tables of rotary angles: ``cos``, ``sin`` float32 ``[max_len, head_dim / 2]``."""

    hidden: int
    heads: int
    kv_heads: int
    dim: int
    inner: int
    cos: Tensor
    sin: Tensor
    eps: float
    scale: float


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer's weights: norms and biases in bfloat16 as they are or None, matrices packed."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class DecoderBatch:
    """Tokens to compute, as ``ops.rope_and_cache`` and ``ops.paged_attention`` take them."""

    positions: Tensor
    slots: Tensor
    block_tables: Tensor
    query_starts: Tensor
    context_lens: Tensor


class _Model(ctypes.Structure):
    _fields_ = [(name, INT64) for name in ("hidden", "heads", "kv_heads", "dim", "inner", "max_len", "num_blocks")]
    _fields_ += [("cos", POINTER), ("sin", POINTER), ("eps", FLOAT), ("scale", FLOAT), ("is_int8", ctypes.c_int)]


class _Layer(ctypes.Structure):
    _fields_ = [(name, POINTER) for name in (*DecoderLayer.__slots__, "k_cache", "v_cache")]


class _Step(ctypes.Structure):
    _fields_ = [(name, INT64) for name in ("rows", "num_seqs", "table_width")]
    _fields_ += [
        (name, POINTER)
        for name in (
            "positions", "slots", "block_tables", "query_starts", "context_lens",
            "residual", "hidden", "qkv", "query", "mixed", "gate_up", "active", "numbers", "scales", "corrections",
        )
    ]  # fmt: skip


class Decoder:
    """A model's layers, ready to run over one cache."""

    def __init__(
        self,
        sizes: DecoderSizes,
        layers: Sequence[DecoderLayer],
        caches: Sequence[tuple[Tensor, Tensor]],
    ) -> None:
        """``caches`` are each layer's K and V in pairs, as in ops.py. Tensors are kept, not copied."""
        if ops.KERNELS is None:
            raise ValueError("no compiled kernels")
        self.num_layers = len(layers)
        dtypes = {matrix.dtype for each in layers for matrix in (each.qkv, each.output, each.gate_up, each.down)}
        if len(dtypes) != 1:
            raise ValueError("matrices are packed in more than one number format")
        self._is_int8 = dtypes == {torch.uint8}
        self._sizes = sizes
        self._library = ops.KERNELS.library
        self._kept = (layers, caches)
        self._model = _Model(
            sizes.hidden, sizes.heads, sizes.kv_heads, sizes.dim, sizes.inner,
            sizes.cos.shape[0], caches[0][0].shape[0],
            sizes.cos.data_ptr(), sizes.sin.data_ptr(), sizes.eps, sizes.scale, self._is_int8,
        )  # fmt: skip
        self._layers = (_Layer * len(layers))(
            *(_layer(layer, cache) for layer, cache in zip(layers, caches, strict=True)),
        )

    def begin(self, batch: DecoderBatch, hidden: Tensor, residual: Tensor) -> DecoderRun:
        """Prepare a batch.

        ``hidden``: bfloat16 ``[num_tokens, hidden]``, what the first layer's norm gives of the embedding; it
        is computed on in place. ``residual``: float32 of that shape, the embedding.
        """
        return DecoderRun(self, batch, hidden, residual)

    def run(self, first: int, end: int, step: _Step) -> None:
        """Compute layers ``first`` to ``end`` of a prepared batch."""
        failed = self._library.kvferry_decoder_layers(
            ctypes.addressof(self._model), ctypes.addressof(self._layers), first, end, self.num_layers,
            ctypes.addressof(step),
        )  # fmt: skip
        if failed == 1:
            raise IndexError("a position, slot, context length or block lies outside its table")
        if failed:
            raise MemoryError("no memory for the decoder's task lists")

    def buffers(self, hidden: Tensor) -> list[Tensor | None]:
        """What a step keeps between phases: qkv, query, mixed, gate_up, active.

        With 8-bit integers also the parts of quantized rows, which hold ``hidden`` at first.
        """
        sizes, num_tokens = self._sizes, len(hidden)
        queries, inner = sizes.heads * sizes.dim, sizes.inner
        widths = (queries + 2 * sizes.kv_heads * sizes.dim, queries, queries, 2 * inner, inner)
        kept = [torch.empty(num_tokens, width, dtype=torch.bfloat16) for width in widths]
        if not self._is_int8:
            return [*kept, None, None, None]
        rows = ops.empty_rows(num_tokens, max(queries, inner, sizes.hidden), ops.GROUP)
        parts = (rows.numbers, rows.scales, rows.corrections)
        addresses = [part.data_ptr() for part in parts]
        self._library.kvferry_quantize(*addresses, hidden.data_ptr(), num_tokens, sizes.hidden, ops.WHOLE_ROW, 1)
        return [*kept, *parts]


class DecoderRun:
    """One batch on its way through the layers."""

    def __init__(self, decoder: Decoder, batch: DecoderBatch, hidden: Tensor, residual: Tensor) -> None:
        """Made by ``Decoder.begin``."""
        inputs = (batch.positions, batch.slots, batch.block_tables, batch.query_starts, batch.context_lens)
        self._decoder = decoder
        self._kept = (*inputs, residual, hidden, *decoder.buffers(hidden))
        self._step = _Step(
            len(hidden), len(batch.context_lens), batch.block_tables.shape[1], *(_pointer(t) for t in self._kept)
        )

    def layers(self, first: int, end: int) -> None:
        """Compute layers ``first`` to ``end``, in order.

        After the last one ``hidden`` is what that layer adds to ``residual``, and isn't added yet. IndexError
        for a position, slot, length or block outside its table; then nothing was written.
        """
        self._decoder.run(first, end, self._step)


def leave_claimed_cores(address: int, count: int, stride: int, num_cores: int) -> None:
    """Leave cores that other processes claim to them, from now on, between two phases of a layer.

    At ``address`` are ``count`` numbers of 64 bits, ``stride`` such words apart, whose sum is how many of the host's
    ``num_cores``; the memory must stay mapped. While all are claimed a layer rests, else it has at least one thread.
    """
    if ops.KERNELS is not None:
        ops.KERNELS.library.kvferry_leave_claimed_cores(address, count, stride, num_cores)


def fits(hidden: int, inner: int, heads: int, kv_heads: int, dim: int, *, int8: bool = False) -> bool:
    """Whether the compiled layers take these sizes, on this machine, and are the fastest way.

    ``int8``: with matrices packed as 8-bit integers.
    """
    heads_fit = dim % ops.HEAD_DIM_STEP == 0 and dim <= ops.MAX_HEAD_DIM and heads <= ops.MAX_GROUP * kv_heads
    together = 4 if int8 else 2
    fast = ops.has_linear("cpu") if int8 else ops.has_fast_linear("cpu")
    return heads_fit and hidden % together == 0 and inner % together == 0 and fast


def _layer(layer: DecoderLayer, cache: tuple[Tensor, Tensor]) -> _Layer:
    tensors = [getattr(layer, name) for name in DecoderLayer.__slots__]
    return _Layer(*(_pointer(t) for t in (*tensors, *cache)))


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
