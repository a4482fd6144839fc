"""How fast everything but attention is, with Llama-3-8B's sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from gpu_check import figures
from gpu_check.bench import Bench
from gpu_check.check import Bound, Check, Found
from gpu_check.paged import LLAMA, TINY, kv_bytes, random_cache
from gpu_check.right_attention import BF16, FP8, INT8, NAMES
from gpu_check.right_rows import EPS, HIDDEN, INNER, VOCAB, tables
from kvferry_kernels.gpu import activation, norm, rotary_cache, sampling
from kvferry_kernels.gpu.block_copy import BlockPlanes, gather_blocks, scatter_blocks
from kvferry_kernels.gpu.cache import write_cache
from kvferry_kernels.gpu.fp8_matmul import fp8_matmul
from kvferry_kernels.gpu.matmul import matmul
from kvferry_kernels.gpu.quantized_rows import quantize_rows

TOKENS, TINY_TOKENS = 8192, 4
"""Of a call: some hundred megabytes, more than the card's cache has."""

BATCH = 64
FP8_MATMUL = Bound(0.6, "%", at_least=True, is_timed=True)
LARGE = ((4096, 4096, 14336), (4096, 28672, 4096), (4096, 6144, 4096))
SMALL = ((64, 4096, 14336), (64, 28672, 4096), (1, 28672, 4096))
"""Rows, outputs and inputs of products: those of a prompt, and of a decode step."""

LAYERS = 32


def checks() -> list[Check]:
    """One for each kernel."""
    found = [Check(f"cache write, {NAMES[kind]}", partial(writes, stored=kind)) for kind in (BF16, FP8, INT8)]
    found += [
        Check("block gather, bf16, 32 layers", partial(copies, copy=gather_blocks)),
        Check("block scatter, bf16, 32 layers", partial(copies, copy=scatter_blocks)),
        Check("add and RMS norm, bf16", norms),
        Check("add, RMS norm and quantize", norms_quantized),
        Check("rotary and cache write, bf16", rotates),
        Check("SiLU and multiply, bf16", activates),
        Check("quantize rows, bf16 to fp8", quantizes),
        Check("sampling, batch 64, greedy", partial(samples, top_p=1.0, temperature=0.0)),
        Check("sampling, batch 64, top-p 0.9", partial(samples, top_p=0.9, temperature=1.0)),
    ]
    for shape in LARGE:
        found.append(Check(_product(shape), partial(multiplies, shape=shape), FP8_MATMUL))
    found.append(
        Check("matmul in tiles of one shape, bf16, 4,096 rows, 4,096 outputs, 14,336 inputs", multiplies_plain)
    )
    return found + [Check(_product(shape), partial(streams_weights, shape=shape)) for shape in SMALL]


def _product(shape: tuple[int, int, int]) -> str:
    return "fp8 matmul, {:,} rows, {:,} outputs, {:,} inputs".format(*shape)


def writes(bench: Bench, *, stored: torch.dtype) -> Found:
    """Bytes of new K and V, and of what is stored."""
    tokens, heads = bench.size(TOKENS, TINY_TOKENS), TINY if bench.is_tiny else LLAMA
    cache = random_cache(bench, -(-tokens // heads.block), heads, stored)
    k, v = (bench.random(tokens, heads.kv, heads.dim, seed=seed) for seed in (1, 2))
    slots = _scattered(bench, tokens)
    ms = bench.timer.ms(lambda: write_cache(k, v, cache, slots))
    return figures.bandwidth(bench, 2 * k.nbytes + kv_bytes(tokens, heads, stored), ms)


def copies(bench: Bench, *, copy: Callable[[BlockPlanes, Tensor, Tensor], None]) -> Found:
    """Blocks of all layers, read and written."""
    num_blocks, layers = bench.size(512, 4), bench.size(LAYERS, 2)
    pool = [random_cache(bench, num_blocks, TINY if bench.is_tiny else LLAMA, BF16) for _ in range(layers)]
    planes = BlockPlanes.of([half for layer in pool for half in (layer.k, layer.v)])
    blocks = _scattered(bench, num_blocks)[: num_blocks // 2]
    staging = torch.zeros(len(blocks), planes.block_bytes, dtype=torch.uint8, device=bench.device)
    return figures.bandwidth(bench, 2 * staging.nbytes, bench.timer.ms(lambda: copy(planes, blocks, staging)))


def norms(bench: Bench) -> Found:
    """Rows in and out, the residual in and out."""
    x, weight, residual = _normed(bench)
    ms = bench.timer.ms(lambda: norm.rms_norm(x, weight, EPS, residual))
    return figures.bandwidth(bench, 2 * x.nbytes + 2 * residual.nbytes, ms)


def norms_quantized(bench: Bench) -> Found:
    """The same with rows of 8 bits out."""
    x, weight, residual = _normed(bench)
    ms = bench.timer.ms(lambda: norm.rms_norm_quantized(x, weight, EPS, residual))
    return figures.bandwidth(bench, x.nbytes + x.numel() + 2 * residual.nbytes, ms)


def rotates(bench: Bench) -> Found:
    """Q, K and V in; Q, and K and V of the cache out."""
    tokens, heads = bench.size(TOKENS, TINY_TOKENS), TINY if bench.is_tiny else LLAMA
    qkv = bench.random(tokens, (heads.queries + 2 * heads.kv) * heads.dim)
    cache = random_cache(bench, -(-tokens // heads.block), heads, BF16)
    positions, slots = torch.arange(tokens, device=bench.device), _scattered(bench, tokens)
    common = (positions, *tables(bench, heads.dim, tokens), slots, cache.k, cache.v)
    return figures.bandwidth(bench, 2 * qkv.nbytes, bench.timer.ms(lambda: rotary_cache.rotate_and_cache(qkv, *common)))


def activates(bench: Bench) -> Found:
    """Gate and up in, half as much out."""
    x = bench.random(bench.size(TOKENS, TINY_TOKENS), 2 * bench.size(INNER, 64))
    return figures.bandwidth(bench, x.nbytes * 3 // 2, bench.timer.ms(lambda: activation.silu_and_mul(x)))


def quantizes(bench: Bench) -> Found:
    """Two bytes of a number in, one out."""
    x = bench.random(bench.size(TOKENS, TINY_TOKENS), bench.size(INNER, 64))
    return figures.bandwidth(bench, x.nbytes * 3 // 2, bench.timer.ms(lambda: quantize_rows(x)))


def samples(bench: Bench, *, top_p: float, temperature: float) -> Found:
    """Logits are counted once, though filters read them several times."""
    batch = bench.size(BATCH, 2)
    logits = bench.random(batch, bench.size(VOCAB, 300), dtype=torch.float32, scale=3.0)
    scratch = torch.empty_like(logits, dtype=torch.int32)
    asks = [sampling.Ask(row, temperature=temperature, top_p=top_p) for row in range(batch)]
    records = sampling.records(asks).to(bench.device)

    def choose() -> Tensor:
        return sampling.sample(logits, records, None, scratch)

    return figures.bandwidth(bench, logits.nbytes, bench.timer.ms(choose))


def multiplies(bench: Bench, *, shape: tuple[int, int, int]) -> Found:
    """Products of a prompt: operations count."""
    operands = _operands(bench, shape)
    ms = bench.timer.ms(lambda: fp8_matmul(*operands, torch.bfloat16))
    of = "fp8 matmul" if bench.rates.has_fp8 else "bf16 matmul"
    x, _, weight, _ = operands
    return figures.throughput(2 * x.numel() * len(weight), ms, bench.rates.fp8, of)


def multiplies_plain(bench: Bench) -> Found:
    """What ``--batch-invariant`` multiplies by."""
    rows, outputs, inputs = (bench.size(size, 8) for size in LARGE[0])
    x, weight = bench.random(rows, inputs), bench.random(outputs, inputs, seed=1)
    ms = bench.timer.ms(lambda: matmul(x, weight))
    return figures.throughput(2 * rows * outputs * inputs, ms, bench.rates.bf16, "bf16 matmul")


def streams_weights(bench: Bench, *, shape: tuple[int, int, int]) -> Found:
    """Products of a decode step: bytes count."""
    x, x_scales, weight, scales = _operands(bench, shape)
    ms = bench.timer.ms(lambda: fp8_matmul(x, x_scales, weight, scales, torch.bfloat16))
    return figures.bandwidth(bench, weight.nbytes + x.nbytes + 2 * len(x) * len(weight), ms)


def _operands(bench: Bench, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, outputs, inputs = (bench.size(size, 1 + size % 11) for size in shape)
    return *quantize_rows(bench.random(rows, inputs)), *quantize_rows(bench.random(outputs, inputs, seed=1))


def _normed(bench: Bench) -> tuple[Tensor, Tensor, Tensor]:
    tokens, size = bench.size(TOKENS, TINY_TOKENS), bench.size(HIDDEN, 48)
    return bench.random(tokens, size), bench.random(size), bench.random(tokens, size, dtype=torch.float32)


def _scattered(bench: Bench, count: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(count)).to(bench.device)
