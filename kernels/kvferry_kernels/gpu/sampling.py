"""The next token of each row by temperature, top-k, top-p and min-p, as ``engine/sampler.py`` defines it.

One program a row and no sort: the row is read for its largest logit, the ids that top-k and top-p might keep are put
into a list in their order, the last one kept is found among them (``ranking.py``), and one of the kept is drawn.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvferry_kernels.gpu.drawing import draw
from kvferry_kernels.gpu.logits_row import likeliest, list_ids, total_weight
from kvferry_kernels.gpu.operand import check
from kvferry_kernels.gpu.philox import uniform
from kvferry_kernels.gpu.ranking import above, floor_of_top_k, last_kept, logit_of, weight_of
from kvferry_kernels.gpu.shipped import FUSED, Shipped

TILE = 4096
"""Logits read at once: eight a thread, 16 KiB a program, which is what keeps its share of the memory busy."""

CHUNK = 1024
"""Ids held against 16 keys at once: 32 comparisons a thread."""

NUM_WARPS = 16
WORD = 32
"""Ids for which a word has a bit."""

LEAST_TEMPERATURE = tl.constexpr(2.0**-126)
"""The least float32 that no instruction takes for 0."""


@triton.jit
def _filters(
    logits_ptr,
    allowed_ptr,
    is_narrowed,
    list_ptr,
    tops,
    peak,
    temperature,
    top_k,
    top_p,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """How many ids are in the list; the last kept key and how many ids of it are kept, the first ones."""
    has_k = (top_k > 0) & (top_k < VOCAB)
    floor = tl.full([], 0, tl.uint32)
    lightest = tl.full([], 0.0, tl.float32)
    total = tl.full([], 0.0, tl.float64)
    if has_k:
        floor = floor_of_top_k(tops, top_k, CHUNK)
    else:
        total = total_weight(logits_ptr, allowed_ptr, is_narrowed, peak, temperature, VOCAB, TILE)
        # Ids so light that all of them together weigh half of what top-p cuts off aren't kept.
        lightest = ((1.0 - top_p) * total / (2 * VOCAB)).to(tl.float32)
    count = list_ids(list_ptr, logits_ptr, allowed_ptr, is_narrowed, peak, temperature, floor, lightest, VOCAB, TILE)
    last = tl.full([], 0, tl.uint32)
    ties = tl.full([], VOCAB, tl.int32)
    for turn in range(2):  # top-k counts ids, top-p weighs those that are left
        by_weight = turn == 1
        if tl.where(by_weight, top_p < 1.0, has_k):
            # The first id is kept even by a top-p of 0.
            target = tl.where(by_weight, tl.maximum(top_p * total, 1e-30), top_k.to(tl.float64))
            key = last_kept(logits_ptr, list_ptr, count, peak, temperature, by_weight, target, CHUNK)
            weight, number = above(logits_ptr, list_ptr, count, peak, temperature, key, CHUNK)
            each = tl.where(key > 0, weight_of(logit_of(key), peak, temperature), 1.0).to(tl.float64)
            missing = tl.where(by_weight, (target - weight) / each, target - number)
            num_equal = tl.minimum(tl.ceil(missing), VOCAB).to(tl.int32)
            total = weight + tl.where(key > 0, num_equal * each, 0.0)
            ties = tl.where(key > last, num_equal, tl.where(key == last, tl.minimum(ties, num_equal), ties))
            last = tl.maximum(last, key)
    return count, last, ties


@triton.jit
def sample_kernel(
    tokens_ptr,
    logits_ptr,
    temperatures_ptr,
    top_ks_ptr,
    top_ps_ptr,
    min_ps_ptr,
    seeds_ptr,
    choices_ptr,
    positions_ptr,
    allowed_ptr,
    is_narrowed,
    list_ptr,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program a row. Sums are of float32 within a tile and of float64 beyond, in a fixed order."""
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * VOCAB
    list_ptr += row * VOCAB
    allowed_ptr += row * ((VOCAB + 31) // 32)
    temperature = tl.load(temperatures_ptr + row)
    top_k = tl.load(top_ks_ptr + row)
    top_p = tl.load(top_ps_ptr + row)
    peak, token, tops = likeliest(logits_ptr, allowed_ptr, is_narrowed, VOCAB, TILE)
    if (token >= 0) & (temperature >= LEAST_TEMPERATURE) & (top_k != 1):
        is_listed = ((top_k > 0) & (top_k < VOCAB)) | (top_p < 1.0)
        count = tl.full([], VOCAB, tl.int32)
        last = tl.full([], 0, tl.uint32)
        ties = tl.full([], VOCAB, tl.int32)
        if is_listed:
            count, last, ties = _filters(
                logits_ptr,
                allowed_ptr,
                is_narrowed,
                list_ptr,
                tops,
                peak,
                temperature,
                top_k,
                top_p,
                VOCAB,
                TILE,
                CHUNK,
            )
        number = uniform(tl.load(seeds_ptr + row), tl.load(choices_ptr + row), tl.load(positions_ptr + row))
        min_p = tl.load(min_ps_ptr + row)
        token = draw(
            logits_ptr,
            allowed_ptr,
            is_narrowed,
            list_ptr,
            is_listed,
            count,
            peak,
            temperature,
            last,
            ties,
            min_p,
            number,
            VOCAB,
            TILE,
        )
    tl.store(tokens_ptr + row, token.to(tl.int64))


def sample(
    logits: Tensor,
    temperatures: Tensor,
    top_ks: Tensor,
    top_ps: Tensor,
    min_ps: Tensor,
    seeds: Tensor,
    choices: Tensor,
    positions: Tensor,
    allowed: Tensor | None = None,
    scratch: Tensor | None = None,
) -> Tensor:
    """Choose a token for each row of ``logits``, float32 ``[num_rows, vocab]``, contiguous; int64 ``[num_rows]``.

    Each ``[num_rows]``: ``temperatures`` float32, 0 (or less than 2^-126) for the first of the largest logits;
    ``top_ks`` int32, 0 for all; ``top_ps`` float32, 1 for all; ``min_ps`` float32, 0 for all; ``seeds`` int64, the
    seed's 64 bits; ``choices`` and ``positions`` int32. ``allowed`` int32 ``[num_rows, ceil(vocab / 32)]``: bit i % 32
    of word i // 32 allows id i; None allows all. ``scratch``: int32, as large as ``logits``; made, if it isn't given.

    A token is -1 where an allowed logit is NaN or the largest isn't finite. A row's token doesn't depend on the others.
    It is the one of ``engine/sampler.py`` but for rounding: weights are float32, so a draw within about 1e-6 of the
    total of a border between two ids may fall to the other one, and an id whose weight is within as much of what
    top-p or min-p asks for may be kept by one and not by the other. ValueError for other tensors.
    """
    num_rows, vocab = logits.shape
    check("logits", logits, (num_rows, vocab), (torch.float32,), logits.device)
    for column in (temperatures, top_ps, min_ps):
        check("temperatures, top_ps, min_ps", column, (num_rows,), (torch.float32,), logits.device)
    for column in (top_ks, choices, positions):
        check("top_ks, choices, positions", column, (num_rows,), (torch.int32,), logits.device)
    check("seeds", seeds, (num_rows,), (torch.int64,), logits.device)
    check("what is allowed", allowed, (num_rows, triton.cdiv(vocab, WORD)), (torch.int32,), logits.device)
    check("scratch", scratch, (num_rows, vocab), (torch.int32,), logits.device)
    tokens = logits.new_empty(num_rows, dtype=torch.int64)
    if not num_rows:
        return tokens
    scratch = torch.empty_like(logits, dtype=torch.int32) if scratch is None else scratch
    sample_kernel[(num_rows,)](
        tokens,
        logits,
        temperatures,
        top_ks,
        top_ps,
        min_ps,
        seeds,
        choices,
        positions,
        scratch if allowed is None else allowed,
        allowed is not None,
        scratch,
        VOCAB=vocab,
        TILE=TILE,
        CHUNK=CHUNK,
        num_warps=NUM_WARPS,
        num_stages=1,
        **FUSED,
    )
    return tokens


def shipped() -> list[Shipped]:
    """The configuration of Llama-3's vocabulary."""
    types = {
        "*i64": ("tokens_ptr", "seeds_ptr"),
        "*fp32": ("logits_ptr", "temperatures_ptr", "top_ps_ptr", "min_ps_ptr"),
        "*i32": ("top_ks_ptr", "choices_ptr", "positions_ptr", "allowed_ptr", "list_ptr"),
        "i1": ("is_narrowed",),
    }
    return [
        Shipped(
            name="sample",
            kernel=sample_kernel,
            signature={argument: kind for kind, arguments in types.items() for argument in arguments},
            constants={"VOCAB": 128256, "TILE": TILE, "CHUNK": CHUNK},
            num_warps=NUM_WARPS,
            num_stages=1,
        )
    ]
