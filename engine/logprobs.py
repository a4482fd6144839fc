"""Log probabilities of chosen tokens, from the distribution before temperature, penalties and filters."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.ranking import highest
from protocol.sampling import TokenLogprob

Floats = npt.NDArray[np.float32]

LOWEST = -9999.0
"""Reported for minus infinity, which JSON can't say; OpenAI reports the same number."""


def token_logprob(logits: Floats, token: int, num_top: int) -> TokenLogprob:
    """Log probability of ``token`` and of the ``num_top`` likeliest ids (equal ones: lower id first).

    ``logits``: one unmodified row ``[vocab]``. Natural logarithms, summed in float64.
    """
    wide = logits.astype(np.float64)
    peak = wide.max()
    log_total = peak + np.log(np.exp(wide - peak).sum())
    top = highest(logits, min(num_top, len(logits)))
    chosen = max(float(wide[token] - log_total), LOWEST)
    values = np.maximum(wide[top] - log_total, LOWEST)
    return TokenLogprob(chosen, tuple(top.tolist()), tuple(values.tolist()))
