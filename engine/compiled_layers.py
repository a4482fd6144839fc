"""All layers of a model in compiled calls, bit for bit what the single operations compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from engine.batch import Batch
from engine.kv_cache import LayerCache
from engine.linear import Linear
from engine.llama_weights import Layer
from engine.model_config import ModelConfig
from kvferry_kernels.decoder import Decoder, DecoderBatch, DecoderLayer, DecoderSizes, fits

TOKENS_AT_ONCE = 16
"""A compiled call takes as many layers as compute no more than a whole step of so many tokens does."""


def can_compile(config: ModelConfig, *, int8: bool) -> bool:
    """Whether the compiled decoder takes layers of these sizes."""
    return fits(
        config.hidden_size,
        config.intermediate_size,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        int8=int8,
    )


class CompiledLayers:
    """The layers of one model, on a CPU in bfloat16."""

    def __init__(self, sizes: DecoderSizes, layers: Sequence[Layer]) -> None:
        self._sizes = sizes
        self._layers = layers
        self._decoder: Decoder | None = None
        self._decoder_cache: Sequence[LayerCache] | None = None

    def compute(
        self,
        batch: Batch,
        cache: Sequence[LayerCache],
        hidden: Tensor,
        residual: Tensor,
        on_layers: Callable[[int], None],
    ) -> Tensor:
        """Run all layers, from the normalized embedding to what the last one adds to ``residual``."""
        decoder = self._decoder_for(cache)
        group = batch.groups[0]
        run = decoder.begin(
            DecoderBatch(batch.positions, group.slots, group.block_tables, batch.query_starts, batch.context_lens),
            hidden,
            residual,
        )
        at_once = max(1, TOKENS_AT_ONCE * decoder.num_layers // max(1, len(hidden)))
        for first in range(0, decoder.num_layers, at_once):
            end = min(first + at_once, decoder.num_layers)
            run.layers(first, end)
            on_layers(end - first)
        return hidden

    def _decoder_for(self, cache: Sequence[LayerCache]) -> Decoder:
        """The compiled decoder over this cache, made anew where it is another than before."""
        if self._decoder is None or self._decoder_cache is not cache:
            self._decoder = Decoder(
                self._sizes, [_compiled(layer) for layer in self._layers], [(layer.k, layer.v) for layer in cache]
            )
            self._decoder_cache = cache
        return self._decoder


def _compiled(layer: Layer) -> DecoderLayer:
    """One layer's weights as the compiled decoder takes them."""
    return DecoderLayer(
        layer.input_norm,
        _tiles(layer.qkv),
        layer.qkv.bias,
        layer.q_norm,
        layer.k_norm,
        _tiles(layer.output),
        layer.output.bias,
        layer.mlp_norm,
        _tiles(layer.gate_up),
        layer.gate_up.bias,
        _tiles(layer.down),
        layer.down.bias,
    )


def _tiles(linear: Linear) -> Tensor:
    if linear.tiles is None:
        raise ValueError("the compiled decoder takes weights of its own kernel only")
    return linear.tiles
