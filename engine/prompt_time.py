"""How much time prompts get beside decoding: whether between two steps of others, or within a step that does both."""

from __future__ import annotations

MIN_SHARE = 0.5
"""Of the time that a decode step takes, however long that is."""

QUEUE, QUEUE_SHARE = 2, 3.0
"""With so many prompts to compute they get this many times of it: whoever waits for a first token waits for all prompts
before, and decode makes more tokens of a step with more sequences."""


def prompt_time(limit: float, decode: float, num_prompts: int) -> float:
    """What a decode step leaves of the limit between two tokens of a stream, or its share if that is more; one unit."""
    return max(limit - decode, decode * (QUEUE_SHARE if num_prompts >= QUEUE else MIN_SHARE))
