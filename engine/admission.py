"""How many blocks a request will want: what has to be tied, and what its answers are expected to grow."""

from __future__ import annotations

from dataclasses import dataclass

from engine.layout import BLOCK_SIZE
from engine.sequence import blocks_for

EXPECTED_TOKENS = 256
"""Output expected of a choice unless ``max_tokens`` is less. Most answers end far below their limit (clients
leave it at the context's length), so counting the limit would halve what a worker takes in; counting nothing
would let in more than can finish, and preempt. Preemption covers those that go on longer."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Blocks: ``trunk`` and ``branches`` (by choice position) are tied at the grant, ``growth`` is expected later."""

    trunk: int
    branches: tuple[int, ...]
    growth: int

    @property
    def tied(self) -> int:
        """Blocks that a grant ties."""
        return self.trunk + sum(self.branches)

    @property
    def least(self) -> int:
        """Without these blocks it can't run at all: what is tied, and one for each choice."""
        return self.tied + len(self.branches)

    @property
    def expected(self) -> int:
        """Blocks to count on before letting the request in."""
        return self.tied + self.growth


def demand(num_prompt_tokens: int, tail_lens: tuple[int, ...], max_tokens: int) -> Demand:
    """What a hand-over will want. With one choice the trunk covers prompt and tail, else the prompt."""
    growth = sum(growth_blocks(max_tokens, tail_len) for tail_len in tail_lens)
    if len(tail_lens) == 1:
        return Demand(blocks_for(num_prompt_tokens + tail_lens[0]), (0,), growth)
    shared = num_prompt_tokens // BLOCK_SIZE
    branches = tuple(blocks_for(num_prompt_tokens + tail_len) - shared if tail_len else 0 for tail_len in tail_lens)
    return Demand(blocks_for(num_prompt_tokens), branches, growth)


def growth_blocks(max_tokens: int, num_output: int) -> int:
    """Blocks that a choice with ``num_output`` tokens is expected to fill yet, and one more."""
    return blocks_for(max(0, min(max_tokens, EXPECTED_TOKENS) - num_output)) + 1
