"""The in-process twin of a real model: no weights, milliseconds, and the next token depends on the cache.

Every number is a small integer, exact in each dtype, so that equal contexts give equal logits whatever the
batch, the chunks or the places of the blocks; and a wrong block, slot or table gives other tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.batch import Batch, GroupBatch
from engine.kv_cache import LayerCache
from engine.layout import BLOCK_SIZE, CacheGroup, KVLayout
from kvferry_kernels.reference import in_order_k, in_order_v, write_cache

Ints = npt.NDArray[np.int64]

CACHE_RANGE = 251
"""K and V are integers below this prime: exact in bfloat16, which has 8 significant bits."""

LOGIT_RANGE = 1021
NUM_LAYERS, NUM_HEADS, HEAD_DIM = 2, 2, 4
WIDTH = NUM_HEADS * HEAD_DIM


@dataclass(frozen=True, slots=True)
class ToyConfig:
    """What the engine asks of a model's config."""

    vocab_size: int = 512


class ToyModel:
    """Two layers whose "attention" is a weighted integer sum over the context, read from the paged cache."""

    def __init__(self, max_model_len: int = 4096, vocab_size: int = 512, dtype: str = "float32") -> None:
        """``dtype`` is the cache's: "float32", "bfloat16" or "float16"."""
        self.config = ToyConfig(vocab_size)
        self.max_model_len = max_model_len
        group = CacheGroup(tuple(range(NUM_LAYERS)), NUM_HEADS, HEAD_DIM)
        self.layout = KVLayout((group,), dtype)
        self.weight_bytes = 0
        self.numerics = "toy"
        random = np.random.default_rng(20)
        self._embedding = random.integers(0, CACHE_RANGE, (vocab_size, WIDTH))
        self._mix = random.integers(1, CACHE_RANGE, (NUM_LAYERS, 2, WIDTH, WIDTH))
        self._head = random.integers(0, LOGIT_RANGE, (WIDTH, vocab_size))

    def forward(self, batch: Batch, cache: Sequence[LayerCache], on_layers: Callable[[int], None]) -> Tensor:
        """Write K and V of the batch's tokens into ``cache`` and return final hidden states ``[num_rows, WIDTH]``."""
        hidden = self._embedding[batch.token_ids.numpy()]
        group = batch.groups[0]
        for layer, mix in zip(cache, self._mix, strict=True):
            keys, values = (hidden @ mix[0] + 1) % CACHE_RANGE, (hidden @ mix[1] + 2) % CACHE_RANGE
            _write(layer, group, keys, values)
            hidden = (hidden + self._attend(batch, layer)) % CACHE_RANGE
            on_layers(1)
        return torch.from_numpy(hidden[batch.output_rows.numpy()])

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 ``[num_rows, vocab]``."""
        scores = (_ints(hidden) @ self._head) % LOGIT_RANGE
        return torch.from_numpy((scores / 64.0).astype(np.float32))

    def _attend(self, batch: Batch, layer: LayerCache) -> Ints:
        """For each token the sum over its context of (position weight + key) * value, as ``[num_tokens, WIDTH]``."""
        starts, lens = batch.query_starts.tolist(), batch.context_lens.tolist()
        parts: list[Ints] = []
        for row, length in enumerate(lens):
            num_tokens = starts[row + 1] - starts[row]
            table = batch.groups[0].block_tables[row, : -(-length // BLOCK_SIZE)].long()
            keys = in_order_k(layer.k[table]).permute(0, 3, 1, 2).reshape(-1, WIDTH)[:length]
            values = in_order_v(layer.v[table]).permute(0, 2, 1, 3).reshape(-1, WIDTH)[:length]
            places = np.arange(length)[:, None] % 13
            terms = (places + _ints(keys)) * _ints(values)
            parts.append(np.cumsum(terms, axis=0)[length - num_tokens :])
        return np.concatenate(parts)


def _write(layer: LayerCache, group: GroupBatch, keys: Ints, values: Ints) -> None:
    """Put ``[num_tokens, WIDTH]`` K and V into the slots."""
    shape = (len(keys), NUM_HEADS, HEAD_DIM)
    k, v = (torch.from_numpy(numbers.reshape(shape)) for numbers in (keys, values))
    write_cache(layer.k, layer.v, group.slots, k, v)


def _ints(tensor: Tensor) -> Ints:
    array: Ints = tensor.to(torch.int64).numpy()
    return array
