"""What a request asks to be done to logits before anything is chosen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from protocol.sampling import Sampling

Floats = npt.NDArray[np.float32]
_NONE: frozenset[int] = frozenset()


def shifts_logits(sampling: Sampling, num_output: int) -> bool:
    """Whether ``adjust_logits`` would change any finite logit for the token at index ``num_output`` of the output."""
    return bool(
        sampling.logit_bias
        or sampling.repetition_penalty != 1.0
        or (num_output and (sampling.presence_penalty or sampling.frequency_penalty))
    )


def banned_ids(sampling: Sampling, output_ids: Sequence[int]) -> frozenset[int]:
    """Ids that can't follow the output: those that would end it too early, or complete a bad word."""
    early = sampling.ending_ids() if len(output_ids) < sampling.min_tokens else _NONE
    if not sampling.bad_words:
        return early
    return early | {word[-1] for word in sampling.bad_words if _ends_with(output_ids, word[:-1])}


def adjust_logits(logits: Floats, sampling: Sampling, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> None:
    """Change one row ``[vocab]`` in place: bias, then repetition, then presence and frequency.

    Repetition, over prompt and output: divides positive logits, multiplies others. Presence is subtracted
    once per id in the output, frequency once per occurrence.
    """
    for token, bias in sampling.logit_bias:
        logits[token] += np.float32(bias)
    if sampling.repetition_penalty != 1.0:
        seen = _unique([*prompt_ids, *output_ids])
        values, penalty = logits[seen], np.float32(sampling.repetition_penalty)
        logits[seen] = np.where(values > 0, values / penalty, values * penalty)
    if output_ids and (sampling.presence_penalty or sampling.frequency_penalty):
        made, counts = np.unique(np.asarray(output_ids, np.int64), return_counts=True)
        logits[made] -= np.float32(sampling.presence_penalty)
        logits[made] -= np.float32(sampling.frequency_penalty) * counts.astype(np.float32)


def _ends_with(output_ids: Sequence[int], ids: Sequence[int]) -> bool:
    if not ids:
        return True
    return bool(output_ids) and output_ids[-1] == ids[-1] and tuple(output_ids[-len(ids) :]) == tuple(ids)


def _unique(token_ids: list[int]) -> npt.NDArray[np.int64]:
    return np.unique(np.asarray(token_ids, np.int64))
