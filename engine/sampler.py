"""The next token of each row: a function of that row's logits, its request and its own tokens alone.

Rows never meet: whatever batch a row is in, and whatever threads run, its token is the same.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import torch

from engine.errors import EngineError
from engine.guide import Bools, GrammarError, Guide
from engine.logprobs import token_logprob
from engine.penalties import adjust_logits, banned_ids, shifts_logits
from engine.philox import uniform
from engine.ranking import highest
from kvferry_kernels import ops
from protocol.sampling import NO_LOGPROBS, Sampling, TokenLogprob

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


FEW = 8
"""Where less than one id of so many may be chosen, those alone are looked at."""


class SamplingError(EngineError):
    """Logits from which no token can be chosen: not a number, or nothing but minus infinity."""


class GuidedError(SamplingError):
    """A request that leaves no token to choose, or a grammar that can't be followed: nobody else's doing."""


@dataclass(frozen=True, slots=True)
class Row:
    """One choice that needs a token, from row ``logits_row`` of the step's logits; or ``forced_id``, if that is set."""

    logits_row: int
    choice: int
    sampling: Sampling
    prompt_ids: Sequence[int]
    output_ids: Sequence[int] = ()
    guide: Guide | None = None
    forced_id: int = -1


@dataclass(frozen=True, slots=True)
class Sampled:
    """A chosen token and, if the request wants them, log probabilities."""

    token_id: int
    logprob: TokenLogprob | None


def sample(logits: Floats, rows: Sequence[Row]) -> list[Sampled | SamplingError]:
    """Choose a token for each of ``rows`` from ``logits`` ``[num_logits_rows, vocab]``, which stay as they are.

    A row that has no token to choose gets an error of its own, as a value: the others aren't to blame.
    """
    likeliest = ops.argmax(torch.from_numpy(logits))
    peaks = logits[np.arange(len(logits)), likeliest.numpy()]
    tokens, are_finite = likeliest.tolist(), np.isfinite(peaks).tolist()
    chosen: list[Sampled | SamplingError] = []
    for row in rows:
        try:
            if not are_finite[row.logits_row]:
                raise SamplingError("the model's logits hold no finite maximum")
            chosen.append(_sample_row(logits, tokens[row.logits_row], row))
        except SamplingError as error:
            chosen.append(error)
    return chosen


def _sample_row(logits: Floats, likeliest: int, row: Row) -> Sampled:
    sampling, num_output = row.sampling, len(row.output_ids)
    if row.forced_id >= 0:
        logprob = token_logprob(logits[row.logits_row], row.forced_id, max(sampling.logprobs, 0))
        return Sampled(row.forced_id, logprob)
    banned = banned_ids(sampling, row.output_ids)
    allowed = _allowed(row, logits.shape[1])
    is_out = likeliest in banned or (allowed is not None and not allowed[likeliest])
    adjusted, best = logits[row.logits_row], -1 if is_out else likeliest
    if shifts_logits(sampling, num_output):
        adjusted, best = adjusted.copy(), -1
        adjust_logits(adjusted, sampling, row.prompt_ids, row.output_ids)
    is_greedy = not sampling.temperature > 0 or sampling.top_k == 1
    if best >= 0 and is_greedy:
        return _told(logits, best, row)
    left = _without(allowed, banned, len(adjusted))
    return _told(logits, _choose(adjusted, left, row, best), row)


def _told(logits: Floats, token: int, row: Row) -> Sampled:
    """What is said of a chosen token."""
    if row.sampling.logprobs == NO_LOGPROBS:
        return Sampled(token, None)
    return Sampled(token, token_logprob(logits[row.logits_row], token, row.sampling.logprobs))


def _choose(adjusted: Floats, left: Bools | None, row: Row, best: int) -> int:
    """A token of those ``left`` (None: all are), of which ``best`` has the highest logit if it isn't -1.

    Where they are few, as between JSON's signs, the others aren't looked at.
    """
    if left is not None and np.count_nonzero(left) < len(left) // FEW:
        ids = np.flatnonzero(left)
        return int(ids[_choose(adjusted[ids], None, row, -1)]) if len(ids) else _none_left()
    if best < 0:
        best = int(np.argmax(adjusted if left is None else np.where(left, adjusted, -np.inf)))
        if not np.isfinite(adjusted[best]) or (left is not None and not left[best]):
            _none_left()
    sampling = row.sampling
    if not sampling.temperature > 0 or sampling.top_k == 1:
        return best
    number = uniform(sampling.seed, row.choice, len(row.output_ids))
    return draw(adjusted, float(adjusted[best]), sampling, number, left)


def _none_left() -> NoReturn:
    raise GuidedError("what the request allows leaves no token to choose")


def _without(allowed: Bools | None, banned: Collection[int], vocab_size: int) -> Bools | None:
    """What is allowed and not banned, ``[vocab]``; None for all."""
    names = [token for token in banned if token < vocab_size]
    if not names:
        return allowed
    left = np.ones(vocab_size, np.bool_) if allowed is None else allowed.copy()
    left[names] = False
    return left


def _allowed(row: Row, vocab_size: int) -> Bools | None:
    """Which ids the grammar and the request's own list leave, ``[vocab]``; None for all."""
    allowed: Bools | None = None
    if row.guide is not None:
        try:
            allowed = row.guide.allowed()
        except GrammarError as error:
            raise GuidedError(str(error)) from error
    if row.sampling.allowed_ids:
        listed = _listed(row.sampling.allowed_ids, vocab_size)
        allowed = listed if allowed is None else listed & allowed
    return allowed


@lru_cache(maxsize=64)
def _listed(ids: tuple[int, ...], vocab_size: int) -> Bools:
    listed = np.zeros(vocab_size, np.bool_)
    listed[list(ids)] = True
    listed.setflags(write=False)
    return listed


def draw(logits: Floats, peak: float, sampling: Sampling, number: float, allowed: Bools | None = None) -> int:
    """Draw from one row ``[vocab]`` whose maximum is ``peak``, with ``number`` in (0, 1]. All in float64.

    Of the ``allowed`` ids ``[vocab]`` alone, whose maximum ``peak`` then is; None for all.

    1. Weights are ``exp((logit - peak) / temperature)``.
    2. Order ids by weight, highest first, equal ones by id. top_k keeps the first k; top_p of those the
       shortest beginning whose weights reach ``top_p`` times the sum of all that top_k kept; min_p of
       those the ones of at least ``min_p`` times the highest weight (which is 1).
    3. Sum up the kept weights in id order, one after another; the token is the first id whose sum reaches
       ``number`` times the last sum.
    """
    with np.errstate(over="ignore"):  # by a temperature near 0: minus infinity, and no weight
        powers = (logits.astype(np.float64) - peak) / sampling.temperature
        weights = np.exp(powers if allowed is None else np.minimum(powers, 0.0))
    if allowed is not None:
        weights *= allowed
    kept: Ids | None = None
    if 0 < sampling.top_k < len(weights):
        kept = highest(weights, sampling.top_k)
    if sampling.top_p < 1.0:
        kept = _top_p(weights, kept, sampling.top_p)
    if sampling.min_p > 0.0:
        candidates = np.arange(len(weights)) if kept is None else kept
        kept = candidates[weights[candidates] >= sampling.min_p]
    if kept is None:
        return _first_reaching(weights, number)
    kept = np.sort(kept)
    return int(kept[_first_reaching(weights[kept], number)])


def _first_reaching(weights: Doubles, share: float) -> int:
    """First index whose running sum reaches ``share`` of the last sum."""
    sums = np.cumsum(weights)
    return int(np.searchsorted(sums, share * sums[-1]))


def _top_p(weights: Doubles, candidates: Ids | None, top_p: float) -> Ids:
    """The shortest beginning of the ranked ``candidates`` (None: all ids) that holds ``top_p`` of their weight.

    Ids so light that all of them together weigh less than half of what is cut off aren't ranked at all.
    """
    if candidates is None:
        total = float(np.sum(weights))
        candidates = np.flatnonzero(weights >= (1.0 - top_p) * total / (2 * len(weights)))
    else:
        total = float(np.sum(weights[candidates]))
        candidates = np.sort(candidates)
    eligible = weights[candidates]
    ranked = np.sort(eligible)[::-1]
    last = min(int(np.searchsorted(np.cumsum(ranked), top_p * total)), len(ranked) - 1)
    above = eligible > ranked[last]
    num_equal = last + 1 - int(np.count_nonzero(above))
    above[np.flatnonzero(eligible == ranked[last])[:num_equal]] = True
    kept: Ids = candidates[above]
    return kept
