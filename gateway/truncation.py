"""Prompts that are cut to fewer tokens on request."""

from collections.abc import Sequence
from typing import TypeVar

from gateway.sampling_fields import TruncationFields
from gateway.served_model import ServedModel

Prompt = TypeVar("Prompt", bound=Sequence[object])

AS_FITS = -1
"""As many tokens as leave room for the answer."""


def is_cut(fields: TruncationFields) -> bool:
    """Whether a prompt may be of any length, since it will be cut."""
    return fields.truncate_prompt_tokens is not None


def cut(prompt: Prompt, fields: TruncationFields, model: ServedModel, max_tokens: int) -> Prompt:
    """Return the part of a prompt that is to be read: the end, or the beginning where the right side is cut off.

    ``max_tokens`` is what must fit behind it. Special tokens count and are cut off like any other.
    """
    wanted = fields.truncate_prompt_tokens
    if wanted is None:
        return prompt
    kept = max(model.max_model_len - max_tokens, 1) if wanted == AS_FITS else wanted
    if fields.truncation_side == "right":
        return prompt[:kept]  # type: ignore[return-value]
    return prompt[-kept:]  # type: ignore[return-value]
