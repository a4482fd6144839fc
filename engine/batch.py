"""What one forward pass computes: tokens of several sequences, and where their K and V live."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """One cache group's addressing.

    ``slots``: int64 ``[num_tokens]``, block * block_size + offset, where each token's K and V go.
    ``block_tables``: int32 ``[num_seqs, max_blocks]``, padded with 0.
    """

    slots: Tensor
    block_tables: Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens of one step, sequences one after another; a sequence's tokens are the last of its context.

    ``token_ids``, ``positions``: int64 ``[num_tokens]``.
    ``query_starts``: int32 ``[num_seqs + 1]``, first row of each sequence, then num_tokens.
    ``context_lens``: int32 ``[num_seqs]``, tokens in context including this step's.
    ``output_rows``: int64 ``[num_rows]``, rows of ``token_ids`` whose final hidden state is wanted.
    ``groups``: one entry per cache group of the layout. All tensors are on the model's device.
    ``query_lens``, ``host_context_lens``: this step's tokens of each sequence, and its whole context, for the host.
    """

    token_ids: Tensor
    positions: Tensor
    query_starts: Tensor
    context_lens: Tensor
    output_rows: Tensor
    groups: tuple[GroupBatch, ...]
    query_lens: tuple[int, ...]
    host_context_lens: tuple[int, ...]
