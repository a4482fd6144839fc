"""How many prompt tokens a step may take beside decoding, so that no stream's gap outlasts a limit."""

from __future__ import annotations

from engine.layout import BLOCK_SIZE
from engine.prompt_time import prompt_time

WEIGHT = 0.2
"""Of the latest step in the running means."""

OUTLIER = 3.0
"""A step that took more than so many times what was expected says something of the machine, not of the work."""

FIRST_GUESS = 4 * BLOCK_SIZE
"""Tokens beside the first decoding sequences, when no prompt has been timed yet."""


class StepBudget:
    """Learns from steps what a prompt token costs and what decoding does; times are in seconds."""

    def __init__(self, limit_s: float) -> None:
        """``limit_s`` 0 is no limit."""
        self._limit = limit_s
        self._decode = 0.0
        self._token = 0.0

    def tokens(self, most: int, num_prompts: int = 1) -> int:
        """Prompt tokens for a step in which something decodes: whole blocks, between one and ``most`` tokens.

        ``num_prompts`` are still to be computed.
        """
        if not self._limit:
            return most
        if not self._token:
            return min(most, FIRST_GUESS)
        left = prompt_time(self._limit, self._decode, num_prompts)
        return min(most, max(BLOCK_SIZE, int(left / self._token) // BLOCK_SIZE * BLOCK_SIZE))

    def learn(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """A step with so many decoding sequences and prompt tokens took ``seconds``."""
        if not num_prompt_tokens:
            self._decode = _mean(self._decode, seconds)
            return
        if num_decodes and seconds < self._decode:
            self._decode = max(0.0, seconds - num_prompt_tokens * self._token)  # it was of more sequences
        elif num_prompt_tokens >= BLOCK_SIZE:  # fewer would be told by chance
            own = seconds - self._decode if num_decodes else seconds
            self._token = _mean(self._token, own / num_prompt_tokens)


def _mean(mean: float, value: float) -> float:
    if not mean:
        return value
    return mean + WEIGHT * (min(max(value, mean / OUTLIER), OUTLIER * mean) - mean)
