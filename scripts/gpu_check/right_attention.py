"""Attention, cache writes and block copies against what is right."""

from __future__ import annotations

from functools import partial

import torch

from gpu_check import errors
from gpu_check.bench import Bench
from gpu_check.check import Bound, Check, Found
from gpu_check.paged import LLAMA, TINY, Heads, empty_like, random_cache, sequences
from kvferry_kernels.gpu import reference
from kvferry_kernels.gpu.attention import Attention
from kvferry_kernels.gpu.block_copy import BlockPlanes, gather_blocks, scatter_blocks
from kvferry_kernels.gpu.cache import write_cache

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
FP8, INT8 = torch.float8_e4m3fn, torch.int8
NAMES = {BF16: "bf16", FP16: "fp16", FP32: "fp32", FP8: "fp8 cache", INT8: "int8 cache"}

CASES = (
    (BF16, BF16, LLAMA),
    (BF16, FP8, LLAMA),
    (BF16, INT8, LLAMA),
    (FP16, FP16, LLAMA),
    (FP32, FP32, Heads(8, 2, 64)),
    (BF16, BF16, Heads(6, 2, 80)),
    (BF16, BF16, Heads(5, 1, 96, 32)),
)
FEATURED = (BF16, BF16, LLAMA)

CONTEXTS, TINY_CONTEXTS = (1, 17, 512, 513, 1300, 4096), (1, 17, 40)
CHUNKS, TINY_CHUNKS = (1, 17, 200, 129, 700, 64), (1, 3, 20)
"""New tokens of the same contexts."""


def checks() -> list[Check]:
    """One for each kernel, dtype and shape."""
    found = []
    for case in CASES:
        found += [_attends("decode", *case), _attends("prefill", *case)]
    found += [_attends("decode", *FEATURED, featured=True), _attends("prefill", *FEATURED, featured=True)]
    for stored in (BF16, FP8, INT8):
        found.append(Check(f"cache write, {NAMES[stored]}", partial(writes, stored=stored), errors.EQUAL))
    for stored in (BF16, INT8):
        name = f"block gather and scatter, {NAMES[stored]}"
        found.append(Check(name, partial(copies, stored=stored), errors.EQUAL))
    return found


def _attends(kind: str, dtype: torch.dtype, stored: torch.dtype, heads: Heads, *, featured: bool = False) -> Check:
    kinds = NAMES[dtype] if stored == dtype else f"{NAMES[dtype]}, {NAMES[stored]}"
    name = f"{kind} attention, {kinds}, {heads}{', window, cap, sinks' if featured else ''}"
    run = partial(attends, kind=kind, dtype=dtype, stored=stored, heads=heads, featured=featured)
    return Check(name, run, Bound(errors.ATTENTION_EPS[dtype], "eps"))


def attends(bench: Bench, *, kind: str, dtype: torch.dtype, stored: torch.dtype, heads: Heads, featured: bool) -> Found:
    """Contexts of many lengths in one batch."""
    if bench.is_tiny:
        heads = Heads(4, 2, 16, heads.block)
    contexts = TINY_CONTEXTS if bench.is_tiny else CONTEXTS
    scale = heads.dim**-0.5
    how = Attention(scale)
    if featured:
        sinks = torch.linspace(-2.0, 3.0, heads.queries, device=bench.device)
        how = Attention(scale, window=bench.size(300, 11), soft_cap=5.0, sinks=sinks)
    if kind == "decode":
        batch = sequences(bench, [1] * len(contexts), contexts, heads, dtype, stored)
        exact = reference.paged_decode(batch.q, batch.cache, batch.tables, batch.context_lens, how)
        return errors.attention(batch.decode(how), exact)
    batch = sequences(bench, TINY_CHUNKS if bench.is_tiny else CHUNKS, contexts, heads, dtype, stored)
    lists = (batch.tables, batch.query_starts, batch.context_lens)
    return errors.attention(batch.prefill(how), reference.paged_prefill(batch.q, batch.cache, *lists, how))


def writes(bench: Bench, *, stored: torch.dtype) -> Found:
    """Tokens to scattered slots, of which one is nobody's."""
    heads = TINY if bench.is_tiny else LLAMA
    num_tokens = bench.size(300, 5)
    cache = empty_like(random_cache(bench, num_tokens, heads, stored))
    expected = empty_like(cache)
    k, v = (bench.random(num_tokens, heads.kv, heads.dim, scale=3.0, seed=seed) for seed in (1, 2))
    order = torch.randperm(num_tokens * heads.block, generator=torch.Generator().manual_seed(1))
    slots = order[:num_tokens].to(bench.device)
    slots[num_tokens // 2] = -1
    write_cache(k, v, cache, slots)
    reference.write_cache(k, v, expected, slots)
    pairs = [(cache.k, expected.k), (cache.v, expected.v)]
    if stored == INT8 and cache.k_scales is not None and expected.k_scales is not None:
        pairs.append((cache.k_scales, expected.k_scales))
    return errors.differing(pairs)


def copies(bench: Bench, *, stored: torch.dtype) -> Found:
    """Blocks of several layers out of one pool and into another."""
    heads = TINY if bench.is_tiny else LLAMA
    pools = []
    for _ in range(2):
        layers = [random_cache(bench, 40, heads, stored) for _ in range(3)]
        tensors = [(layer.k, layer.v, layer.k_scales, layer.v_scales) for layer in layers]
        pools.append([tensor for layer in tensors for tensor in layer if tensor is not None])
    blocks = torch.randperm(40, generator=torch.Generator().manual_seed(2))[: bench.size(13, 3)].to(bench.device)
    source, goal = (BlockPlanes.of(pool) for pool in pools)
    staging = torch.empty(len(blocks), source.block_bytes, dtype=torch.uint8, device=bench.device)
    gather_blocks(source, blocks, staging)
    expected = reference.gather_blocks(pools[0], blocks)
    scatter_blocks(goal, blocks, staging)
    landed = [(one[blocks], other[blocks]) for one, other in zip(pools[1], pools[0], strict=True)]
    return errors.differing([(staging, expected), *landed])
