"""The Llama family's forward pass over a paged cache: Llama, SmolLM, Mistral, Qwen2, Qwen3."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from engine.device import has_gpu_kernels, torch_device
from engine.kernels import Attention, Kernels
from engine.linear import Linear, packing, products
from engine.llama_weights import Layer, LlamaWeights, Loader
from engine.model_config import read_model_config
from engine.model_sizes import (
    NO_QUANTIZATION,
    kv_layout,
    model_len,
    resolve_dtype,
    resolve_quantization,
)
from engine.packed_file import PackedFile, Tiles
from engine.rope import rope_tables
from engine.weights import files_fingerprint, open_weights
from kvferry_kernels.decoder import Decoder, DecoderBatch, DecoderLayer, DecoderSizes
from kvferry_kernels.decoder import fits as decoder_fits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from engine.batch import Batch
    from engine.kv_cache import LayerCache


TOKENS_AT_ONCE = 16
"""A compiled call takes as many layers as compute no more than a whole step of so many tokens does."""


class LlamaModel:
    """A model of the Llama family, loaded from a folder.

    ``config``, ``layout`` (of its cache), ``max_model_len`` in tokens, ``weight_bytes`` as computed with,
    ``numerics``: equal on two workers if they compute the same bits, ``is_compiled``: whether layers are
    compiled as a whole.
    """

    def __init__(
        self,
        folder: Path,
        dtype: str,
        device: str = "cpu",
        *,
        max_model_len: int | None = None,
        quantization: str = NO_QUANTIZATION,
        packed_dir: Path | None = None,
    ) -> None:
        """Load ``folder``; ModelError if it can't be served.

        ``device`` is one of engine.device. ``dtype`` is "float32", "bfloat16", "float16" (GPU only) or "auto", the
        folder's own. ``quantization`` is "none"
        or "int8" (CPU only): all matrices and what they multiply in 8-bit integers, the rest in ``dtype``. In
        ``packed_dir`` packed matrices are kept, and mapped by all that name it.
        """
        self.config = config = read_model_config(folder)
        self.max_model_len = model_len(config, max_model_len)
        name = resolve_dtype(dtype, config, device)
        self._dtype: torch.dtype = getattr(torch, name)
        self._device = torch.device(torch_device(device))
        self._kernels = Kernels.of(device)
        self.layout = kv_layout(config, name, is_plain=has_gpu_kernels(device))
        int8 = resolve_quantization(quantization, device)
        multiply = products(self._device.type, self._dtype, int8=int8)
        self.numerics = f"{self._kernels.variant(self._device)};{multiply};torch-{torch.__version__};{name}"
        self._scale = config.head_dim**-0.5
        self._group = config.num_heads // config.num_kv_heads
        tables = rope_tables(config.rope, config.head_dim, self.max_model_len)
        self._cos, self._sin = (table.to(self._device) for table in tables)
        weights = self._load(folder, quantization, int8, packed_dir)
        self.weight_bytes = weights.weight_bytes
        self._embedding, self._layers = weights.embedding, weights.layers
        self._final_norm, self._head = weights.final_norm, weights.head
        self._sizes = DecoderSizes(
            config.hidden_size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.intermediate_size,
            self._cos,
            self._sin,
            config.norm_eps,
            self._scale,
        )
        takes = decoder_fits(
            config.hidden_size,
            config.intermediate_size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            int8=int8,
        )
        self.is_compiled = takes and self._dtype == torch.bfloat16 and not has_gpu_kernels(device)
        self._decoder: Decoder | None = None
        self._decoder_cache: Sequence[LayerCache] | None = None

    def _load(self, folder: Path, quantization: str, int8: bool, packed_dir: Path | None) -> LlamaWeights:
        def build(tiles: Tiles) -> LlamaWeights:
            return Loader(open_weights(folder), self.config, self._device, self._dtype, int8, tiles).load()

        if packed_dir is None or packing(self._device.type, self._dtype, int8=int8) is None:
            return build(Tiles())
        dtype = str(self._dtype).removeprefix("torch.")
        return PackedFile(packed_dir, f"{files_fingerprint(folder, quantization)}-{dtype}").load(build)

    def forward(self, batch: Batch, cache: Sequence[LayerCache], on_layers: Callable[[int], None]) -> Tensor:
        """Write the batch's K and V into ``cache`` (by layer) and return final hidden states.

        ``[num_rows, hidden_size]`` for ``batch.output_rows``, normalized. ``on_layers`` is called with how many more
        layers are computed. The residual stream is float32 in every dtype: measured on the default model in bfloat16,
        that and unrounded logits bring the output distribution four times nearer to float32's (KL).
        """
        eps = self.config.norm_eps
        hidden = functional.embedding(batch.token_ids, self._embedding)
        residual = hidden.float()
        hidden = self._kernels.rms_norm(hidden, self._layers[0].input_norm, eps)
        compute = self._compute_compiled if self.is_compiled else self._compute
        hidden = compute(batch, cache, hidden, residual, on_layers)
        rows = batch.output_rows
        return self._kernels.rms_norm(hidden[rows], self._final_norm, eps, residual[rows])

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 ``[num_rows, vocab_size]`` of final hidden states."""
        return self._head(hidden)

    def _compute(
        self,
        batch: Batch,
        cache: Sequence[LayerCache],
        hidden: Tensor,
        residual: Tensor,
        on_layers: Callable[[int], None],
    ) -> Tensor:
        """Run all layers, from the normalized embedding to what the last one adds to ``residual``."""
        eps = self.config.norm_eps
        norms = [layer.input_norm for layer in self._layers[1:]]
        kernels = self._kernels
        attention = kernels.attention(batch.query_lens, batch.host_context_lens, self._group, self._device)
        for layer, layer_cache, norm in zip(self._layers, cache, [*norms, None], strict=True):
            hidden = layer.output(self._attend(layer, hidden, batch, layer_cache, attention))
            hidden = kernels.rms_norm(hidden, layer.mlp_norm, eps, residual)
            hidden = layer.down(kernels.silu_and_mul(layer.gate_up(hidden)))
            if norm is not None:
                hidden = kernels.rms_norm(hidden, norm, eps, residual)
            on_layers(1)
        return hidden

    def _compute_compiled(
        self,
        batch: Batch,
        cache: Sequence[LayerCache],
        hidden: Tensor,
        residual: Tensor,
        on_layers: Callable[[int], None],
    ) -> Tensor:
        """The same by the compiled decoder, bit for bit."""
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

    def _attend(self, layer: Layer, hidden: Tensor, batch: Batch, cache: LayerCache, attention: Attention) -> Tensor:
        group = batch.groups[0]
        query = self._kernels.rope_and_cache(
            layer.qkv(hidden),
            batch.positions,
            self._cos,
            self._sin,
            group.slots,
            cache.k,
            cache.v,
            layer.q_norm,
            layer.k_norm,
            self.config.norm_eps,
        )
        mixed = attention(
            query,
            cache.k,
            cache.v,
            group.block_tables,
            batch.query_starts,
            batch.context_lens,
            self._scale,
        )
        return mixed.flatten(1)


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
