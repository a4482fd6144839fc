"""What a step has to do at least: products, and bytes from memory."""

from __future__ import annotations

from dataclasses import dataclass

from engine.llama import LlamaModel
from floors.ceilings import Ceilings


@dataclass(frozen=True, slots=True)
class Floor:
    """Milliseconds of each part; which of them add up is ``total_ms``."""

    products_ms: float
    weights_ms: float
    kv_ms: float

    @property
    def total_ms(self) -> float:
        """Weights are read while they are multiplied; the KV of the contexts comes on top."""
        return max(self.products_ms, self.weights_ms) + self.kv_ms


@dataclass(frozen=True, slots=True)
class Work:
    """Counts of one model: numbers in its matrices, and bytes."""

    layer_params: int
    """Of all layers."""

    head_params: int
    attention_width: int
    """Numbers of a token's queries, over all layers."""

    weight_bytes: int
    """Of one number in a matrix."""

    kv_bytes: int
    """Of a token."""

    @classmethod
    def of(cls, model: LlamaModel, weight_bytes: int) -> Work:
        """Count."""
        config, layout = model.config, model.layout
        queries, keys = (heads * config.head_dim for heads in (config.num_heads, config.num_kv_heads))
        layer = config.hidden_size * (2 * queries + 2 * keys + 3 * config.intermediate_size)
        return cls(
            layer_params=layer * config.num_layers,
            head_params=config.vocab_size * config.hidden_size,
            attention_width=queries * config.num_layers,
            weight_bytes=weight_bytes,
            kv_bytes=layout.block_bytes // layout.block_size,
        )

    def decode(self, batch: int, context: float, rate: float, read: float) -> Floor:
        """A token more for each of ``batch`` sequences of ``context`` tokens."""
        params = self.layer_params + self.head_params
        return Floor(
            products_ms=2e3 * batch * params / rate,
            weights_ms=1e3 * self.weight_bytes * params / read,
            kv_ms=1e3 * batch * context * self.kv_bytes / read,
        )

    def prefill(self, length: int, rate: float, read: float) -> Floor:
        """A prompt and its first token: every position's layers, each attending to those before, and one head."""
        params = self.layer_params + self.head_params
        pairs = length * (length + 1) / 2
        operations = 2 * (length * self.layer_params + self.head_params) + 4 * pairs * self.attention_width
        return Floor(1e3 * operations / rate, 1e3 * self.weight_bytes * params / read, 0.0)


def rate_of(ceilings: Ceilings, quantization: str) -> float:
    """The rate of the products that the model is made of."""
    if quantization == "int8" and ceilings.int8:
        return ceilings.int8.per_s
    return ceilings.bf16.per_s
