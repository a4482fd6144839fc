"""The operations of a decoder layer: a compiled kernel where one is loaded and fits, else the torch twin.

Everywhere: activations are bfloat16 or float32 (any floating dtype on a GPU), contiguous, and of one dtype with
cache and weights; numbers are computed in float32 and rounded once, to nearest even. Caches of 32-bit numbers are
``[num_blocks, kv_heads, head_dim, block_size]`` for K and ``[num_blocks, kv_heads, block_size, head_dim]`` for V; those
of 16-bit numbers have pairs of neighbors together, ``[num_blocks, kv_heads, head_dim / 2, block_size, 2]`` and
``[num_blocks, kv_heads, block_size / 2, head_dim, 2]``, as instructions for products of pairs want them.
A row's result depends on its own context alone, bit for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvferry_kernels import native, reference
from kvferry_kernels.reference import QuantizedRows

KERNELS = native.load()

GROUP, WHOLE_ROW = reference.GROUP, reference.WHOLE_ROW

NUMERICS = 4
"""Raised with each change to what the compiled kernels compute."""

PACKING = "tiles-2"
"""Names the orders of ``pack_linear`` and ``pack_linear_int8``, for who keeps what they return."""

BLOCK_SIZE = 16
"""The kernels' block size; others go to the reference."""

HEAD_DIM_STEP = 16
"""The kernels' head dimensions are multiples of the widest vector."""

MAX_HEAD_DIM = 256
MAX_GROUP = 64
"""Query heads per KV head whose running sums the attention kernel holds."""


def variant(device: str) -> str:
    """Name the kernels used on a device: workers of one name compute the same bits."""
    if device == "cpu" and KERNELS is not None:
        return f"{KERNELS.name}-{NUMERICS}"
    return f"reference-{device.partition(':')[0]}"


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """Normalize rows by their root mean square and scale them by ``weight``.

    ``x`` ``[num_tokens, size]``, ``weight`` ``[size]``. ``residual``, always float32, of x's shape,
    becomes residual + x in place, and that sum is what is normalized. Returns ``[num_tokens, size]``.
    """
    if KERNELS is None or not _native(x, weight) or not _is_float(residual):
        return reference.rms_norm(x, weight, eps, residual)
    out = torch.empty_like(x)
    KERNELS.library.kvferry_rms_norm(
        out.data_ptr(),
        x.data_ptr(),
        _pointer(residual),
        weight.data_ptr(),
        x.shape[0],
        x.shape[1],
        eps,
        x.dtype == torch.bfloat16,
    )
    return out


def silu_and_mul(x: Tensor) -> Tensor:
    """Map gate and up, ``[num_tokens, 2 * size]``, to silu(gate) * up, ``[num_tokens, size]``."""
    if KERNELS is None or not _native(x):
        return reference.silu_and_mul(x)
    size = x.shape[1] // 2
    out = x.new_empty(x.shape[0], size)
    KERNELS.library.kvferry_silu_and_mul(out.data_ptr(), x.data_ptr(), x.shape[0], size, x.dtype == torch.bfloat16)
    return out


def rope_and_cache(
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Rotate Q and K, write K and V into the cache, return Q as ``[num_tokens, heads, head_dim]``.

    ``qkv`` ``[num_tokens, (heads + 2 * kv_heads) * head_dim]``; ``positions``, ``slots`` int64
    ``[num_tokens]``, no slot twice; ``cos``, ``sin`` float32 ``[max_len, head_dim / 2]`` (pairs are
    (i, i + head_dim / 2)). ``q_norm``, ``k_norm`` ``[head_dim]``: weights of an RMS norm of each head
    before rotation. IndexError for a position or slot outside its table, where that is checked (CPU).
    """
    kv_heads, dim, block_size = reference.cache_sizes(k_cache, v_cache)
    fits = KERNELS is not None and _native(qkv, k_cache, v_cache, q_norm, k_norm)
    if KERNELS is None or not fits or not _fits(dim, block_size):
        return reference.rope_and_cache(qkv, positions, cos, sin, slots, k_cache, v_cache, q_norm, k_norm, eps)
    heads = qkv.shape[1] // dim - 2 * kv_heads
    query = qkv.new_empty(qkv.shape[0], heads, dim)
    failed = KERNELS.library.kvferry_rope_and_cache(
        query.data_ptr(),
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        qkv.data_ptr(),
        _pointer(q_norm),
        _pointer(k_norm),
        positions.data_ptr(),
        slots.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        qkv.shape[0],
        heads,
        kv_heads,
        dim,
        cos.shape[0],
        k_cache.shape[0],
        eps,
        qkv.dtype == torch.bfloat16,
    )
    if failed:
        raise IndexError("a position or slot lies outside its table")
    return query


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    scale: float,
) -> Tensor:
    """Causal attention of each sequence's last tokens over its whole context, in the cache already.

    ``q`` ``[num_tokens, heads, head_dim]``, sequences one after another; ``block_tables`` int32
    ``[num_seqs, max_blocks]``; ``query_starts`` int32 ``[num_seqs + 1]``; ``context_lens`` int32
    ``[num_seqs]``, this step's tokens included. Query head h reads KV head h * kv_heads / heads.
    Returns ``[num_tokens, heads, head_dim]``. What a last block holds beyond the context, NaN too,
    has no influence. IndexError for a length or block outside its table, where that is checked (CPU).
    """
    kv_heads, dim, block_size = reference.cache_sizes(k_cache, v_cache)
    heads = q.shape[1]
    fits = KERNELS is not None and _native(q, k_cache, v_cache) and heads <= MAX_GROUP * kv_heads
    if KERNELS is None or not fits or not _fits(dim, block_size):
        return reference.paged_attention(q, k_cache, v_cache, block_tables, query_starts, context_lens, scale)
    out = torch.empty_like(q)
    failed = KERNELS.library.kvferry_paged_attention(
        out.data_ptr(),
        q.data_ptr(),
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        block_tables.data_ptr(),
        query_starts.data_ptr(),
        context_lens.data_ptr(),
        q.shape[0],
        context_lens.shape[0],
        block_tables.shape[1],
        heads,
        kv_heads,
        dim,
        k_cache.shape[0],
        scale,
        q.dtype == torch.bfloat16,
    )
    if failed == 1:
        raise IndexError("a context length or block lies outside its table")
    if failed:
        raise MemoryError("no memory for the attention kernel's task list")
    return out


def has_linear(device: str) -> bool:
    """Whether ``linear`` is compiled for this device."""
    return KERNELS is not None and device == "cpu"


def has_fast_linear(device: str) -> bool:
    """Whether ``linear`` is also the fastest way to multiply here.

    It is with AVX-512's bfloat16 products or on a matrix unit, and isn't without them. Beside a matrix unit that our
    library can't use oneDNN may be faster at many rows, but its rows would depend on their number.
    """
    return device == "cpu" and KERNELS is not None and KERNELS.name in ("cpu_v4_amx", "cpu_v4_bf16")


def pack_linear(weight: Tensor) -> Tensor:
    """Reorder bfloat16 ``[outputs, size]`` into tiles of 32 outputs, padded with zeros.

    Returns ``[tiles, ceil(size / 2), 32, 2]``: a pair of inputs of 32 outputs lies together.
    """
    return reference.pack_linear(weight)


def linear(x: Tensor, packed: Tensor, outputs: int, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Multiply ``[num_rows, size]`` by a packed weight and add ``bias`` ``[outputs]``, all of them bfloat16.

    Returns ``[num_rows, outputs]`` in ``dtype``, bfloat16 or float32; in the latter nothing is rounded.
    """
    if KERNELS is None or not _native(x, packed, bias) or x.dtype != torch.bfloat16 or x.shape[1] % 2:
        return reference.linear(x, packed, outputs, bias, dtype)
    out = x.new_empty(x.shape[0], outputs, dtype=dtype)
    KERNELS.library.kvferry_linear(
        out.data_ptr(),
        x.data_ptr(),
        packed.data_ptr(),
        _pointer(bias),
        x.shape[0],
        outputs,
        x.shape[1],
        dtype == torch.bfloat16,
    )
    return out


def quantize_rows(x: Tensor, group: int) -> QuantizedRows:
    """Quantize rows ``[num_rows, size]`` symmetrically to 8 bits, each ``group`` numbers by the largest of them.

    ``group`` is ``GROUP`` or ``WHOLE_ROW``. Products of a row with a NaN or infinity in it are NaN.
    """
    if KERNELS is None or not _native(x):
        return reference.quantize_rows(x, group)
    num_rows, size = x.shape
    rows = empty_rows(num_rows, size, group)
    KERNELS.library.kvferry_quantize(*_addresses(rows), x.data_ptr(), num_rows, size, group, x.dtype == torch.bfloat16)
    return rows


def empty_rows(num_rows: int, size: int, group: int) -> QuantizedRows:
    """Room for ``num_rows`` quantized rows of up to ``size`` numbers, on the CPU."""
    groups = -(-size // group)
    return QuantizedRows(
        torch.empty(num_rows, size + -size % reference.FOUR, dtype=torch.int8),
        torch.empty(num_rows, groups, dtype=torch.float32),
        torch.empty(num_rows, groups, dtype=torch.int32),
        group,
    )


def pack_linear_int8(weight: Tensor) -> Tensor:
    """Quantize ``[outputs, size]`` symmetrically to 8 bits, each output by its own scale, in tiles of 32 outputs.

    Returns uint8 ``[tiles, ceil(size / 4) + 1, 32, 4]``: four inputs of 32 outputs lie together, as bytes w + 128;
    then 32 scales as float32. Padded with zeros.
    """
    return reference.pack_linear_int8(weight)


def linear_int8(rows: QuantizedRows, packed: Tensor, outputs: int, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Multiply quantized rows by what ``pack_linear_int8`` gave, and add ``bias`` ``[outputs]``.

    Returns ``[num_rows, outputs]`` in ``dtype``, bfloat16 or float32, which is the bias's too. Sums over a
    group of inputs are in integers; they are scaled and added, in their order, in float32, and rounded once.
    """
    parts = (rows.numbers, rows.scales, rows.corrections, packed)
    fits = all(part.is_cpu and part.is_contiguous() for part in parts) and (bias is None or _native(bias))
    if KERNELS is None or not fits or dtype not in (torch.bfloat16, torch.float32):
        return reference.linear_int8(rows, packed, outputs, bias, dtype)
    num_rows, size = rows.numbers.shape
    out = torch.empty(num_rows, outputs, dtype=dtype)
    KERNELS.library.kvferry_linear_int8(
        out.data_ptr(),
        *_addresses(rows),
        packed.data_ptr(),
        _pointer(bias),
        num_rows,
        outputs,
        size,
        rows.group,
        dtype == torch.bfloat16,
    )
    return out


def _addresses(rows: QuantizedRows) -> tuple[int, int, int]:
    return rows.numbers.data_ptr(), rows.scales.data_ptr(), rows.corrections.data_ptr()


def _native(*tensors: Tensor | None) -> bool:
    """Whether the kernels take these: on the CPU, of one dtype that they know, contiguous."""
    dtype = tensors[0].dtype if tensors[0] is not None else None
    if dtype not in (torch.bfloat16, torch.float32):
        return False
    return all(t is None or (t.is_cpu and t.dtype == dtype and t.is_contiguous()) for t in tensors)


def _is_float(residual: Tensor | None) -> bool:
    return residual is None or (residual.dtype == torch.float32 and residual.is_contiguous())


def _fits(dim: int, block_size: int) -> bool:
    return block_size == BLOCK_SIZE and dim % HEAD_DIM_STEP == 0 and dim <= MAX_HEAD_DIM


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
