"""Tokens chosen from rows of logits on a GPU: those of ``kvferry_kernels/sampling.py``, to the last one.

One program for each token and no sort: the row is read for its largest logit, the ids that top-k and top-p might keep
are put into a list in their order, the last kept one is found among them (``ranking.py``), and one of these is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from kvferry_kernels import sampling_reference
from kvferry_kernels.gpu.drawing import draw
from kvferry_kernels.gpu.logits_row import likeliest, list_ids, total_weight
from kvferry_kernels.gpu.operand import check
from kvferry_kernels.gpu.philox import uniform
from kvferry_kernels.gpu.ranking import above, floor_of_top_k, last_kept, logit_of, share_of, weight_of
from kvferry_kernels.gpu.shipped import EXACT, Shipped
from kvferry_kernels.sampling import MAX_VOCAB, num_words

TILE = 4096
"""Logits read at once: eight a thread, 16 KiB a program, which is what keeps its share of the memory busy."""

CHUNK = 1024
"""Ids held against 16 keys at once: 32 comparisons a thread."""

NUM_WARPS = 16


class Ask(NamedTuple):
    """What one token is asked for by: see ``sampling_reference.Choice``; ``number`` is made of the last three.

    ``seed`` has 64 bits; ``choice`` and ``position`` are those of ``engine/philox.py``.
    """

    row: int
    mask: int = -1
    top_k: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0
    position: int = 0


_FLOATS = ("scale", "top_p")
_RECORD = np.dtype(
    [
        (name, np.float64 if name in _FLOATS else np.int64)
        for name in ("row", "mask", "top_k", "scale", "top_p", "least", "seed", "choice", "position")
    ]
)
FIELDS = len(_RECORD.names or ())
ROW, MASK, TOP_K, SCALE, TOP_P, LEAST, SEED, CHOICE, POSITION = (tl.constexpr(place) for place in range(FIELDS))


def records(asks: Sequence[Ask]) -> Tensor:
    """What the kernel reads of them: int64 ``[len(asks), FIELDS]`` on the CPU, floats as the bits of float64."""
    made = np.zeros(len(asks), _RECORD)
    for place, ask in enumerate(asks):
        scale = sampling_reference.scale_of(ask.temperature) if ask.temperature > 0 else 0.0
        least = sampling_reference.share_of(ask.min_p, sampling_reference.ONE) if ask.min_p > 0 else 1
        seed = (ask.seed + 2**63) % 2**64 - 2**63
        made[place] = (ask.row, ask.mask, ask.top_k, scale, ask.top_p, least, seed, ask.choice, ask.position)
    return torch.from_numpy(made.view(np.int64).reshape(len(asks), FIELDS))


@triton.jit
def _times_up(weight, each):
    """How many of ``each`` are ``weight`` at least; less than 2^31, for cards divide floats with less ado."""
    times = tl.floor(weight.to(tl.float64) / each.to(tl.float64)).to(tl.int64)
    return times + (times * each < weight).to(tl.int64)


@triton.jit
def _filters(
    logits_ptr,
    allowed_ptr,
    is_narrowed,
    list_ptr,
    tops,
    peak,
    scale,
    top_k,
    top_p,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """How many ids are in the list; the last kept key and how many ids of it are kept, the first ones."""
    has_k = (top_k > 0) & (top_k < VOCAB)
    floor = tl.full([], 0, tl.uint32)
    lightest = tl.full([], 1, tl.int64)
    total = tl.full([], 0, tl.int64)
    if has_k:
        floor = floor_of_top_k(tops, top_k, CHUNK)
    else:
        total = total_weight(logits_ptr, allowed_ptr, is_narrowed, peak, scale, VOCAB, TILE)
        # Ids so light that all of them together weigh less than what top-p cuts off aren't kept.
        cut_off = (total - share_of(top_p, total)).to(tl.float64)
        lightest = tl.maximum((cut_off * (0.999 / VOCAB)).to(tl.int64), 1)
    count = list_ids(list_ptr, logits_ptr, allowed_ptr, is_narrowed, peak, scale, floor, lightest, VOCAB, TILE)
    last = tl.full([], 0, tl.uint32)
    ties = tl.full([], VOCAB, tl.int64)
    for turn in range(2):  # top-k counts ids, top-p weighs those that are left
        by_weight = turn == 1
        if tl.where(by_weight, top_p < 1.0, has_k):
            target = tl.where(by_weight, share_of(top_p, total), top_k)
            key = last_kept(logits_ptr, list_ptr, count, peak, scale, by_weight, target, CHUNK)
            weight, number = above(logits_ptr, list_ptr, count, peak, scale, key, CHUNK)
            each = tl.where(key > 0, weight_of(logit_of(key), peak, scale), 1)
            missing = tl.where(by_weight, _times_up(target - weight, each), target - number)
            total = weight + tl.where(key > 0, missing * each, 0)
            ties = tl.where(key > last, missing, tl.where(key == last, tl.minimum(ties, missing), ties))
            last = tl.maximum(last, key)
    return count, last, ties


@triton.jit
def sample_kernel(
    tokens_ptr,
    logits_ptr,
    records_ptr,
    masks_ptr,
    list_ptr,
    VOCAB: tl.constexpr,
    FIELDS: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program a token."""
    place = tl.program_id(0).to(tl.int64)
    record_ptr = records_ptr + place * FIELDS
    list_ptr += place * VOCAB
    logits_ptr += tl.load(record_ptr + ROW) * VOCAB
    mask = tl.load(record_ptr + MASK)
    is_narrowed = (mask >= 0).to(tl.int32)
    allowed_ptr = masks_ptr + tl.maximum(mask, 0) * ((VOCAB + 31) // 32)
    scale = tl.load(record_ptr + SCALE).to(tl.float64, bitcast=True).to(tl.float32)
    top_k = tl.load(record_ptr + TOP_K)
    top_p = tl.load(record_ptr + TOP_P).to(tl.float64, bitcast=True)
    peak, token, tops = likeliest(logits_ptr, allowed_ptr, is_narrowed, VOCAB, TILE)
    if (token >= 0) & (scale > 0.0) & (top_k != 1):
        is_listed = ((top_k > 0) & (top_k < VOCAB)) | (top_p < 1.0)
        count = tl.full([], VOCAB, tl.int32)
        last = tl.full([], 0, tl.uint32)
        ties = tl.full([], VOCAB, tl.int64)
        if is_listed:
            count, last, ties = _filters(
                logits_ptr, allowed_ptr, is_narrowed, list_ptr, tops, peak, scale, top_k, top_p, VOCAB, TILE, CHUNK
            )
        choice, position = tl.load(record_ptr + CHOICE).to(tl.int32), tl.load(record_ptr + POSITION).to(tl.int32)
        number = uniform(tl.load(record_ptr + SEED), choice, position)
        least = tl.load(record_ptr + LEAST)
        token = draw(
            logits_ptr,
            allowed_ptr,
            is_narrowed,
            list_ptr,
            is_listed,
            count,
            peak,
            scale,
            last,
            ties,
            least,
            number,
            VOCAB,
            TILE,
        )
    tl.store(tokens_ptr + place, token.to(tl.int64))


def sample(logits: Tensor, records: Tensor, masks: Tensor | None = None, scratch: Tensor | None = None) -> Tensor:
    """Choose a token for each of ``records``: int64 ``[num_tokens]``.

    ``logits``: float32 ``[num_rows, vocab]``. ``records``: of the function of that name, on the device of the logits;
    that they name rows and masks that are there isn't checked. ``masks``: int32 ``[num_masks, ceil(vocab / 32)]``: bit
    i % 32 of word i // 32 allows id i. ``scratch``: int32 ``[num_tokens, vocab]``; made, if it isn't given. All are
    contiguous.

    A token is NONE_LEFT or NOT_FINITE as in ``kvferry_kernels/sampling.py``, and else the one that is chosen there,
    given the same logits. It doesn't depend on the others. ValueError for other tensors.
    """
    num_rows, vocab = logits.shape
    num_tokens = len(records)
    if not 0 < vocab <= MAX_VOCAB:
        raise ValueError(f"a vocabulary of {vocab}")
    check("logits", logits, (num_rows, vocab), (torch.float32,), logits.device)
    check("records", records, (num_tokens, FIELDS), (torch.int64,), logits.device)
    num_masks = 0 if masks is None else len(masks)
    check("masks", masks, (num_masks, num_words(vocab)), (torch.int32,), logits.device)
    check("scratch", scratch, (num_tokens, vocab), (torch.int32,), logits.device)
    tokens = logits.new_empty(num_tokens, dtype=torch.int64)
    if not num_tokens:
        return tokens
    scratch = logits.new_empty(num_tokens, vocab, dtype=torch.int32) if scratch is None else scratch
    sample_kernel[(num_tokens,)](
        tokens,
        logits,
        records,
        scratch if masks is None else masks,
        scratch,
        **_constants(vocab),
        num_warps=NUM_WARPS,
        num_stages=1,
        **EXACT,
    )
    return tokens


def _constants(vocab: int) -> dict[str, object]:
    return {"VOCAB": vocab, "FIELDS": FIELDS, "TILE": TILE, "CHUNK": CHUNK}


def shipped() -> list[Shipped]:
    """The configuration of Llama-3's vocabulary."""
    return [
        Shipped(
            name="sample",
            kernel=sample_kernel,
            signature={
                "tokens_ptr": "*i64",
                "logits_ptr": "*fp32",
                "records_ptr": "*i64",
                "masks_ptr": "*i32",
                "list_ptr": "*i32",
            },
            constants=_constants(128256),
            num_warps=NUM_WARPS,
            num_stages=1,
            is_fused=False,
        )
    ]
