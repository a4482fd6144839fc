"""What works on rows, and the product of 8-bit floats, against what is right."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from engine.philox import uniform
from gpu_check import errors
from gpu_check.bench import Bench
from gpu_check.check import Check, Found
from kvferry_kernels import reference
from kvferry_kernels.gpu import activation, norm, quantized_rows, rotary, rotary_cache, row_reference, sampling
from kvferry_kernels.gpu.fp8_matmul import fp8_matmul
from kvferry_kernels.gpu.matmul import matmul
from kvferry_kernels.sampling_reference import Choice, choose_tokens

EPS = 1e-5
HIDDEN, INNER, VOCAB = 4096, 14336, 128256
"""Llama-3-8B's."""

PRODUCTS = (
    (1, 4096, 4096),
    (16, 6144, 4096),
    (64, 4096, 14336),
    (300, 4096, 4096),
    (1024, 28672, 4096),
    (37, 1000, 300),
)
"""Rows, outputs and inputs, of which each takes other tiles."""

STEPS, COARSE_STEPS = 16.0, 2.0**11
COARSE_SUMS = ((8, 9), (10, 0))
"""Capabilities whose tensor cores keep some 14 bits within a sum of 8-bit products: DeepSeek-AI, "DeepSeek-V3 technical
report" (2024). These are 2^-13 of its magnitudes."""

DRAWS = (
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.6, 0, 1.0, 0.0),
    (1.0, 7, 1.0, 0.0),
    (3.0, 500, 1.0, 0.0),
    (1.0, 0, 0.9, 0.0),
    (2.0, 0, 0.6, 0.0),
    (1.5, 40, 0.8, 0.02),
    (2.0, 0, 1.0, 0.05),
)
"""Temperature, top-k, top-p and min-p."""


def checks() -> list[Check]:
    """One for each kernel."""
    found = [
        Check("RMS norm, bf16", partial(norms, added=False), errors.ROUNDED),
        Check("add and RMS norm, bf16", partial(norms, added=True), errors.ROUNDED),
        Check("add, RMS norm and quantize, bf16 to fp8", norms_quantized, errors.EQUAL),
        Check("rotary and cache write, bf16", rotates_and_caches, errors.ROUNDED),
        Check("rotary with norms of heads, bf16", rotates, errors.ROUNDED),
        Check("SiLU and multiply, bf16", activates, errors.ROUNDED),
        Check("quantize rows, bf16 to fp8", quantizes, errors.EQUAL),
        Check("matmul in tiles of one shape, bf16", multiplies_plain, errors.ROUNDED),
        Check("sampling, top-k, top-p, min-p, Philox", samples, errors.EQUAL),
    ]
    for shape in PRODUCTS:
        name = "fp8 matmul, {:,} rows, {:,} outputs, {:,} inputs".format(*shape)
        found.append(Check(name, partial(multiplies, shape=shape), errors.ROUNDED))
    return found


def norms(bench: Bench, *, added: bool) -> Found:
    """Rows of the hidden size."""
    size = bench.size(HIDDEN, 48)
    x, weight = bench.random(bench.size(70, 3), size), bench.random(size)
    residual = bench.random(*x.shape, dtype=torch.float32, scale=3.0) if added else None
    total = x.float() if residual is None else x.float() + residual
    exact = reference.rms_norm(total, weight.float(), EPS)
    return errors.rounding(norm.rms_norm(x, weight, EPS, residual), exact, float_steps=8)


def norms_quantized(bench: Bench) -> Found:
    """In one pass as in two."""
    size = bench.size(HIDDEN, 48)
    x, weight = bench.random(bench.size(70, 3), size), bench.random(size)
    first = bench.random(*x.shape, dtype=torch.float32, scale=3.0)
    second = first.clone()
    numbers, scales = norm.rms_norm_quantized(x, weight, EPS, first)
    expected, expected_scales = quantized_rows.quantize_rows(norm.rms_norm(x, weight, EPS, second))
    return errors.differing([(numbers, expected), (scales, expected_scales), (first, second)])


def tables(bench: Bench, dim: int, length: int) -> tuple[Tensor, Tensor]:
    """Cos and sin of all positions."""
    frequencies = 5e5 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
    return angles.cos().float().to(bench.device), angles.sin().float().to(bench.device)


def sizes(x: Tensor, norm_weight: Tensor | None) -> Tensor:
    """What errors of a rotation are measured by: magnitudes of what it adds."""
    x = x.double()
    if norm_weight is not None:
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * norm_weight.double()
    low, high = x.abs().chunk(2, dim=-1)
    return torch.cat((low + high, low + high), dim=-1)


def rotates_and_caches(bench: Bench) -> Found:
    """Q as rotated, and the whole of both caches."""
    heads, kv_heads, dim, tokens = bench.size(32, 4), bench.size(8, 2), bench.size(128, 16), bench.size(100, 4)
    qkv = bench.random(tokens, (heads + 2 * kv_heads) * dim)
    positions = torch.arange(tokens, device=bench.device) * 3
    slots = torch.randperm(tokens * 16, generator=torch.Generator().manual_seed(1))[:tokens].to(bench.device)
    caches = [torch.zeros(tokens, kv_heads, 16, dim, dtype=qkv.dtype, device=bench.device) for _ in range(2)]
    exact_caches = [cache.double() for cache in caches]
    common = (positions, *tables(bench, dim, 3 * tokens), slots)
    query = rotary_cache.rotate_and_cache(qkv, *common, *caches)
    exact = row_reference.rotate_and_cache(qkv, *common, *exact_caches)
    q, k, _ = qkv.view(tokens, -1, dim).split((heads, kv_heads, kv_heads), dim=1)
    spread = sizes(k, None).max().expand_as(caches[0])
    found = (
        errors.rounding(query, exact, 8, sizes(q, None)),
        errors.rounding(caches[0], exact_caches[0], 8, spread),
        errors.rounding(caches[1], exact_caches[1], 0),
    )
    return max(found, key=lambda one: one.value or 0.0)


def rotates(bench: Bench) -> Found:
    """Q and K in place."""
    heads, dim, tokens = bench.size(32, 4), bench.size(128, 16), bench.size(100, 4)
    q, k = bench.random(tokens, heads, dim), bench.random(tokens, 2, dim, seed=1)
    weights = bench.random(dim), bench.random(dim, seed=1)
    positions = torch.arange(tokens, device=bench.device) * 3
    cos, sin = tables(bench, dim, 3 * tokens)
    before = q.clone(), k.clone()
    rotary.rotate(q, k, positions, cos, sin, *weights, EPS)
    found = [
        errors.rounding(new, row_reference.rotate(old, positions, cos, sin, weight, EPS), 8, sizes(old, weight))
        for new, old, weight in zip((q, k), before, weights, strict=True)
    ]
    return max(found, key=lambda one: one.value or 0.0)


def activates(bench: Bench) -> Found:
    """Rows of gate and up."""
    x = bench.random(bench.size(70, 3), 2 * bench.size(INNER, 40), scale=5.0)
    return errors.rounding(activation.silu_and_mul(x), reference.silu_and_mul(x.float()), float_steps=16)


def quantizes(bench: Bench) -> Found:
    """Rows of large and small numbers, and of zeros."""
    x = bench.random(bench.size(70, 3), bench.size(INNER, 40), scale=3.0)
    x[1] = 0
    x[2] *= 1e-3
    return errors.differing(list(zip(quantized_rows.quantize_rows(x), row_reference.quantize_rows(x), strict=True)))


def samples(bench: Bench) -> Found:
    """A token for each way to choose: how many aren't those that are chosen on a CPU."""
    vocab = bench.size(VOCAB, 300)
    logits = bench.random(len(DRAWS), vocab, dtype=torch.float32, scale=3.0)
    asks = [sampling.Ask(row, -1, k, t, p, m, row * 10**9, row, row) for row, (t, k, p, m) in enumerate(DRAWS)]
    chosen = sampling.sample(logits, sampling.records(asks).to(bench.device)).tolist()
    choices = [Choice(each.row, -1, *each[2:6], uniform(each.seed, each.choice, each.position)) for each in asks]
    right = choose_tokens(logits.cpu().numpy(), choices, [], None)
    wrong = sum(token != other for token, other in zip(chosen, right, strict=True))
    return Found(f"{len(DRAWS)} rows of {vocab:,}", float(wrong), errors.EQUAL.unit)


def multiplies(bench: Bench, *, shape: tuple[int, int, int]) -> Found:
    """Random rows and weights."""
    rows, outputs, inputs = (bench.size(size, 1 + size % 11) for size in shape)
    x, x_scales = row_reference.quantize_rows(bench.random(rows, inputs, dtype=torch.float32))
    weight, scales = row_reference.quantize_rows(bench.random(outputs, inputs, dtype=torch.float32, seed=1))
    out = fp8_matmul(x, x_scales, weight, scales, torch.bfloat16)
    exact = row_reference.fp8_matmul(x, x_scales, weight, scales)
    size = row_reference.fp8_matmul(x.double().abs(), x_scales, weight.double().abs(), scales)
    return errors.rounding(out, exact, sum_steps(bench), size + exact.abs())


def multiplies_plain(bench: Bench) -> Found:
    """The product whose rows don't depend on their number, with a bias."""
    rows, outputs, inputs = bench.size(300, 3), bench.size(6144, 20), bench.size(HIDDEN, 40)
    x, weight, bias = bench.random(rows, inputs), bench.random(outputs, inputs, seed=1), bench.random(outputs)
    exact = x.double() @ weight.double().T + bias.double()
    size = x.double().abs() @ weight.double().abs().T + bias.double().abs()
    return errors.rounding(matmul(x, weight, bias), exact, STEPS, size)


def sum_steps(bench: Bench) -> float:
    """Roundings to float32 that a sum of products may be off by."""
    is_coarse = bench.is_card and COARSE_SUMS[0] <= torch.cuda.get_device_capability(bench.device) < COARSE_SUMS[1]
    return COARSE_STEPS if is_coarse else STEPS
