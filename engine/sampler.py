"""The next token of each row: a function of that row's logits, its request and its own tokens alone.

Rows never meet: whatever batch a row is in, and whatever threads run, its token is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

from engine.errors import EngineError
from engine.guide import GrammarError, Guide
from engine.id_masks import Words, mask_of, mask_without
from engine.logprobs import token_logprob
from engine.penalties import adjust_logits, banned_ids, shifts_logits
from engine.philox import uniform
from kvferry_kernels.sampling import NONE_LEFT, NOT_FINITE, choose_tokens
from kvferry_kernels.sampling_reference import Choice
from protocol.sampling import NO_LOGPROBS, Sampling, TokenLogprob

Floats = npt.NDArray[np.float32]


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
    asked = _Asked(logits)
    for row in rows:
        asked.add(row)
    return [_told(logits, token, row) for token, row in zip(asked.tokens(), rows, strict=True)]


class _Asked:
    """What rows ask of the kernel, which answers all in one call."""

    def __init__(self, logits: Floats) -> None:
        self._logits = logits
        self._choices: list[Choice] = []
        self._masks: list[Words] = []
        self._adjusted: list[Floats] = []
        self._faults: dict[int, SamplingError] = {}

    def add(self, row: Row) -> None:
        """One row more."""
        place = len(self._choices)
        try:
            self._choices.append(self._choice(row))
        except GuidedError as error:
            self._faults[place] = error
            self._choices.append(_likeliest(row.logits_row))

    def tokens(self) -> list[int | SamplingError]:
        """A token or an error for each, in order."""
        more = np.stack(self._adjusted) if self._adjusted else None
        tokens = choose_tokens(self._logits, self._choices, self._masks, more)
        return [self._checked(place, token) for place, token in enumerate(tokens)]

    def _checked(self, place: int, token: int) -> int | SamplingError:
        is_adjusted = self._choices[place].row >= len(self._logits)
        if token == NOT_FINITE and is_adjusted:
            token = NONE_LEFT
        return checked(token, self._faults.get(place))

    def _choice(self, row: Row) -> Choice:
        sampling, num_output = row.sampling, len(row.output_ids)
        if row.forced_id >= 0:
            return _likeliest(row.logits_row)
        mask = self._mask(row)
        place = self._adjust(row) if shifts_logits(sampling, num_output) else row.logits_row
        if not sampling.temperature > 0:
            return _likeliest(place, mask)
        number = uniform(sampling.seed, row.choice, num_output)
        return Choice(place, mask, sampling.top_k, sampling.temperature, sampling.top_p, sampling.min_p, number)

    def _adjust(self, row: Row) -> int:
        """Put what the request makes of its logits, if they are numbers, behind the model's; returns its place."""
        adjusted = self._logits[row.logits_row].copy()
        if not np.isfinite(adjusted.max()):
            return row.logits_row
        adjust_logits(adjusted, row.sampling, row.prompt_ids, row.output_ids)
        self._adjusted.append(adjusted)
        return len(self._logits) + len(self._adjusted) - 1

    def _mask(self, row: Row) -> int:
        """Which mask has what is allowed and not banned; -1 for all ids."""
        mask = allowed_to(row, self._logits.shape[1])
        if mask is None:
            return -1
        self._masks.append(mask)
        return len(self._masks) - 1


def allowed_to(row: Row, vocab_size: int) -> Words | None:
    """What is allowed and not banned, None for all ids. GuidedError if a grammar can't be followed."""
    masks = []
    if row.guide is not None:
        try:
            masks.append(row.guide.allowed())
        except GrammarError as error:
            raise GuidedError(str(error)) from error
    if row.sampling.allowed_ids:
        masks.append(mask_of(row.sampling.allowed_ids, vocab_size))
    banned = banned_ids(row.sampling, row.output_ids)
    if banned:
        masks.append(mask_without(banned, vocab_size))
    return reduce(np.bitwise_and, masks) if masks else None


def checked(token: int, fault: SamplingError | None) -> int | SamplingError:
    """A kernel's answer, or the error that it stands for. ``fault`` is what kept the request from being asked for."""
    if token == NOT_FINITE:
        return SamplingError("the model's logits hold no finite maximum")
    if fault is not None:
        return fault
    if token == NONE_LEFT:
        return GuidedError("what the request allows leaves no token to choose")
    return token


def _likeliest(logits_row: int, mask: int = -1) -> Choice:
    """Without chance."""
    return Choice(logits_row, mask, top_k=0, temperature=0.0, top_p=1.0, min_p=0.0, number=1.0)


def _told(logits: Floats, token: int | SamplingError, row: Row) -> Sampled | SamplingError:
    """What is said of a chosen token, or of a forced one."""
    if isinstance(token, SamplingError):
        return token
    is_forced, num_top = row.forced_id >= 0, row.sampling.logprobs
    chosen = row.forced_id if is_forced else token
    if num_top == NO_LOGPROBS and not is_forced:
        return Sampled(chosen, None)
    return Sampled(chosen, token_logprob(logits[row.logits_row], chosen, max(num_top, 0)))
