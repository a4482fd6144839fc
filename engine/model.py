"""What the engine asks of a model, whichever it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from engine.batch import Batch
from engine.kv_cache import LayerCache
from engine.layout import KVLayout


class Config(Protocol):
    """What the engine asks of a model's config."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""


class Model(Protocol):
    """One forward pass over a paged cache."""

    @property
    def config(self) -> Config:
        """Sizes."""

    @property
    def layout(self) -> KVLayout:
        """How its K and V lie in the pool."""

    def forward(self, batch: Batch, cache: Sequence[LayerCache], on_layers: Callable[[int], None]) -> Tensor:
        """Write the batch's K and V; final hidden states ``[num_rows, hidden_size]`` of ``batch.output_rows``.

        ``on_layers`` is called with how many more layers are computed. A token's state depends on its own
        context alone.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 ``[num_rows, vocab_size]`` of final hidden states."""
