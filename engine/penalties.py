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


def banned_ids(sampling: Sampling, num_output: int) -> frozenset[int]:
    """Ids that can't be chosen at index ``num_output`` of the output: those that would end it too early."""
    return sampling.ending_ids() if num_output < sampling.min_tokens else _NONE


def adjust_logits(logits: Floats, sampling: Sampling, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> None:
    """Change one row ``[vocab]`` in place: bias, repetition, presence and frequency, then ending ids.

    Repetition, over prompt and output: divides positive logits, multiplies others. Presence is subtracted
    once per id in the output, frequency once per occurrence. Ending ids are -inf until ``min_tokens`` exist.
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
    banned = [token for token in banned_ids(sampling, len(output_ids)) if token < len(logits)]
    if banned:
        logits[banned] = -np.inf


def _unique(token_ids: list[int]) -> npt.NDArray[np.int64]:
    return np.unique(np.asarray(token_ids, np.int64))
