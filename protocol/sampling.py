"""How the next token is chosen: the part of a request that every worker needs alike.

Standard library only: the engine uses this class as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

NO_LOGPROBS = -1
MEAN, LAST = "mean", "last"
"""Kinds of pooling."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings of one request; all its choices share them.

    ``temperature`` 0 is greedy. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 switch a filter off.
    ``seed`` is 64 bits; a token is a function of (seed, choice, position) and the context alone.
    ``eos_ids`` end a choice unless ``ignore_eos``; ``stop_token_ids`` always do. Both are masked
    until ``min_tokens`` tokens exist. ``logprobs`` is how many alternatives to report: -1 none at
    all, 0 the chosen token's log probability only. Only ``allowed_ids`` can be chosen, all where none is
    named; the last id of a sequence of ``bad_words`` can't be where the others are just before it. The output
    is a text of ``grammar``, in llguidance's notation (its Lark, or JSON with "grammars"), "" for any: a choice
    ends where that does. With ``forced_ids`` nothing is chosen: they are the whole output, ``max_tokens`` of one
    choice, and what is made are their log probabilities; that is how a prompt is scored. With ``pooling`` ("mean" or
    "last") no token is made but one vector, of all the prompt's final hidden states or of the last one.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    min_tokens: int = 0
    max_tokens: int = 16
    eos_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int = NO_LOGPROBS
    allowed_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar: str = ""
    forced_ids: tuple[int, ...] = ()
    pooling: str = ""

    def ending_ids(self) -> frozenset[int]:
        """Token ids that end a choice."""
        return frozenset(self.stop_token_ids if self.ignore_eos else self.eos_ids + self.stop_token_ids)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability of one chosen token and of its likeliest alternatives, by token id.

    Natural logarithms of the distribution before temperature and filters.
    """

    logprob: float
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()
