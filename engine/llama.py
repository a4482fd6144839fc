"""The Llama family's forward pass over a paged cache: Llama, SmolLM, Mistral, Qwen2, Qwen3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from engine.linear import Head, Linear, products
from engine.model_config import read_model_config
from engine.model_sizes import head_is_copy, kv_layout, model_len, resolve_dtype
from engine.rope import rope_tables
from engine.weights import Weights, open_weights
from kvferry_kernels import ops
from kvferry_kernels.decoder import Decoder, DecoderBatch, DecoderLayer, DecoderSizes
from kvferry_kernels.decoder import fits as decoder_fits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from engine.batch import Batch
    from engine.kv_cache import LayerCache


TOKENS_AT_ONCE = 64
"""A compiled call takes as many layers as compute no more than a whole step of so many tokens does."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer's weights. Norms are ``[hidden_size]``, head norms ``[head_dim]`` or None."""

    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear

    @property
    def weight_bytes(self) -> int:
        """Bytes of all of them."""
        vectors = (self.input_norm, self.q_norm, self.k_norm, self.mlp_norm)
        linears = (self.qkv, self.output, self.gate_up, self.down)
        return sum(x.nbytes for x in vectors if x is not None) + sum(x.weight_bytes for x in linears)


class LlamaModel:
    """A model of the Llama family, loaded from a folder.

    ``config``, ``layout`` (of its cache), ``max_model_len`` in tokens, ``weight_bytes`` as computed with,
    ``numerics``: equal on two workers if they compute the same bits.
    """

    def __init__(self, folder: Path, dtype: str, device: str = "cpu", *, max_model_len: int | None = None) -> None:
        """Load ``folder``; ModelError if it can't be served.

        ``dtype`` is "float32", "bfloat16", "float16" (GPU only) or "auto", the folder's own.
        """
        self.config = config = read_model_config(folder)
        self.max_model_len = model_len(config, max_model_len)
        name = resolve_dtype(dtype, config, device)
        self._dtype: torch.dtype = getattr(torch, name)
        self._device = torch.device(device)
        self.layout = kv_layout(config, name)
        multiply = products(self._device.type, self._dtype)
        self.numerics = f"{ops.variant(device)};{multiply};torch-{torch.__version__};{name}"
        self._scale = config.head_dim**-0.5
        tables = rope_tables(config.rope, config.head_dim, self.max_model_len)
        self._cos, self._sin = (table.to(self._device) for table in tables)
        self._load(open_weights(folder))
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
            config.hidden_size, config.intermediate_size, config.num_heads, config.num_kv_heads, config.head_dim
        )
        self._is_compiled = takes and self._dtype == torch.bfloat16 and self._device.type == "cpu"
        self._decoder: Decoder | None = None
        self._decoder_cache: Sequence[LayerCache] | None = None

    def forward(self, batch: Batch, cache: Sequence[LayerCache], on_layer: Callable[[], None]) -> Tensor:
        """Write the batch's K and V into ``cache`` (by layer) and return logits.

        Float32 ``[num_rows, vocab_size]`` for ``batch.logit_rows``. ``on_layer`` is called after each
        layer. The residual stream is float32 in every dtype: measured on the default model in bfloat16,
        that and unrounded logits bring the output distribution four times nearer to float32's (KL).
        """
        eps = self.config.norm_eps
        hidden = functional.embedding(batch.token_ids, self._embedding)
        residual = hidden.float()
        hidden = ops.rms_norm(hidden, self._layers[0].input_norm, eps)
        compute = self._compute_compiled if self._is_compiled else self._compute
        hidden = compute(batch, cache, hidden, residual, on_layer)
        rows = batch.logit_rows
        hidden = ops.rms_norm(hidden[rows], self._final_norm, eps, residual[rows])
        return self._head(hidden)

    def _compute(
        self,
        batch: Batch,
        cache: Sequence[LayerCache],
        hidden: Tensor,
        residual: Tensor,
        on_layer: Callable[[], None],
    ) -> Tensor:
        """Run all layers, from the normalized embedding to what the last one adds to ``residual``."""
        eps = self.config.norm_eps
        norms = [layer.input_norm for layer in self._layers[1:]]
        for layer, layer_cache, norm in zip(self._layers, cache, [*norms, None], strict=True):
            hidden = layer.output(self._attend(layer, hidden, batch, layer_cache))
            hidden = ops.rms_norm(hidden, layer.mlp_norm, eps, residual)
            hidden = layer.down(ops.silu_and_mul(layer.gate_up(hidden)))
            if norm is not None:
                hidden = ops.rms_norm(hidden, norm, eps, residual)
            on_layer()
        return hidden

    def _compute_compiled(
        self,
        batch: Batch,
        cache: Sequence[LayerCache],
        hidden: Tensor,
        residual: Tensor,
        on_layer: Callable[[], None],
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
            for _ in range(first, end):
                on_layer()
        return hidden

    def _decoder_for(self, cache: Sequence[LayerCache]) -> Decoder:
        """The compiled decoder over this cache, made anew where it is another than before."""
        if self._decoder is None or self._decoder_cache is not cache:
            self._decoder = Decoder(
                self._sizes, [_compiled(layer) for layer in self._layers], [(layer.k, layer.v) for layer in cache]
            )
            self._decoder_cache = cache
        return self._decoder

    def _attend(self, layer: Layer, hidden: Tensor, batch: Batch, cache: LayerCache) -> Tensor:
        group = batch.groups[0]
        query = ops.rope_and_cache(
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
        mixed = ops.paged_attention(
            query,
            cache.k,
            cache.v,
            group.block_tables,
            batch.query_starts,
            batch.context_lens,
            self._scale,
        )
        return mixed.flatten(1)

    def _load(self, weights: Weights) -> None:
        config = self.config
        vocab, hidden = config.vocab_size, config.hidden_size
        self._embedding = self._place(weights.take("model.embed_tokens.weight", vocab, hidden))
        self._final_norm = self._place(weights.take("model.norm.weight", hidden))
        head = self._embedding
        if not config.tied_embeddings:
            head = self._place(weights.take("lm_head.weight", vocab, hidden))
        self._head = Head(head)
        self._layers = [self._load_layer(weights, i) for i in range(config.num_layers)]
        shared = config.tied_embeddings and not head_is_copy(config, self._device.type)
        self.weight_bytes = self._embedding.nbytes + self._final_norm.nbytes
        self.weight_bytes += 0 if shared else self._head.weight_bytes
        self.weight_bytes += sum(layer.weight_bytes for layer in self._layers)

    def _load_layer(self, weights: Weights, index: int) -> Layer:
        config = self.config
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        queries, keys = config.num_heads * dim, config.num_kv_heads * dim
        prefix = f"model.layers.{index}."

        def vector(name: str, size: int) -> Tensor:
            return self._place(weights.take(f"{prefix}{name}.weight", size))

        def linear(inputs: int, bias: bool, parts: dict[str, int]) -> Linear:
            names = [(f"{prefix}{name}_proj", size) for name, size in parts.items()]
            matrices = [weights.take(f"{name}.weight", size, inputs) for name, size in names]
            biases = [weights.take(f"{name}.bias", size) for name, size in names] if bias else []
            joined = self._place(torch.cat(biases)) if biases else None
            return Linear(self._place(torch.cat(matrices)), joined)

        attention = {"self_attn.q": queries, "self_attn.k": keys, "self_attn.v": keys}
        return Layer(
            input_norm=vector("input_layernorm", hidden),
            qkv=linear(hidden, config.qkv_bias, attention),
            q_norm=vector("self_attn.q_norm", dim) if config.head_norm else None,
            k_norm=vector("self_attn.k_norm", dim) if config.head_norm else None,
            output=linear(queries, config.output_bias, {"self_attn.o": hidden}),
            mlp_norm=vector("post_attention_layernorm", hidden),
            gate_up=linear(hidden, config.mlp_bias, {"mlp.gate": inner, "mlp.up": inner}),
            down=linear(inner, config.mlp_bias, {"mlp.down": hidden}),
        )

    def _place(self, tensor: Tensor) -> Tensor:
        return tensor.to(device=self._device, dtype=self._dtype)


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
