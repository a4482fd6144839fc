"""How fast attention is, with Llama-3-8B's heads."""

from __future__ import annotations

from functools import partial

import torch

from gpu_check import figures
from gpu_check.bench import Bench
from gpu_check.check import Bound, Check, Found
from gpu_check.paged import LLAMA, TINY, kv_bytes, sequences
from gpu_check.right_attention import BF16, FP8, INT8, NAMES
from kvferry_kernels.gpu.attention import Attention

DECODE = Bound(0.85, "%", at_least=True, is_timed=True)
PREFILL = Bound(0.5, "%", at_least=True, is_timed=True)

BATCH, CONTEXT, TINY_CONTEXT = 64, 4096, 40
TINY_PART = 256
"""Tiny chunks are that much shorter."""

CHUNKS = ((2048, 4096), (2048, 0), (512, 4096), (512, 0))
"""New tokens, and tokens before them. 512 are too few programs to keep a card busy: they have no bound."""

BOUNDED_CHUNK = 2048


def checks() -> list[Check]:
    """Decode with each kind of cache, and prefill."""
    found = []
    for stored in (BF16, FP8, INT8):
        name = f"decode attention, batch {BATCH}, context {CONTEXT:,}, {NAMES[stored]}"
        found.append(Check(name, partial(decodes, batch=BATCH, stored=stored), DECODE))
    found.append(Check(f"decode attention, batch 1, context {CONTEXT:,}, bf16", partial(decodes, batch=1, stored=BF16)))
    for chunk, before in CHUNKS:
        name = f"prefill attention, {chunk:,} tokens after {before:,}, bf16"
        bound = PREFILL if chunk >= BOUNDED_CHUNK else None
        found.append(Check(name, partial(prefills, chunk=chunk, before=before), bound))
    return found


def decodes(bench: Bench, *, batch: int, stored: torch.dtype) -> Found:
    """Bytes of K and V, queries and results."""
    batch, context = bench.size(batch, 2), bench.size(CONTEXT, TINY_CONTEXT)
    heads = TINY if bench.is_tiny else LLAMA
    case = sequences(bench, [1] * batch, [context] * batch, heads, BF16, stored)
    how = Attention(heads.dim**-0.5)
    ms = bench.timer.ms(lambda: case.decode(how))
    return figures.bandwidth(bench, kv_bytes(batch * context, heads, stored) + 2 * case.q.nbytes, ms)


def prefills(bench: Bench, *, chunk: int, before: int) -> Found:
    """Two products of each query with each key that it sees."""
    heads = TINY if bench.is_tiny else LLAMA
    if bench.is_tiny:
        chunk, before = chunk // TINY_PART, before // TINY_PART
    case = sequences(bench, [chunk], [before + chunk], heads, BF16, BF16)
    how = Attention(heads.dim**-0.5)
    ms = bench.timer.ms(lambda: case.prefill(how))
    pairs = chunk * before + chunk * (chunk + 1) // 2
    return figures.throughput(4 * heads.queries * heads.dim * pairs, ms, bench.rates.bf16, "bf16 matmul")
