"""The Llama family's forward pass over a paged cache: Llama, SmolLM, Mistral, Qwen2, Qwen3."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from engine.compiled_layers import CompiledLayers, can_compile
from engine.decode_graphs import CudaRecorder, DecodeGraphs, Recorder
from engine.device import has_gpu_kernels, torch_device
from engine.kernels import Attention, Kernels
from engine.linear import packing, products
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
from kvferry_kernels.decoder import DecoderSizes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from engine.batch import Batch
    from engine.kv_cache import LayerCache


INVARIANT = "tiles of one shape"
"""How matrices are multiplied with ``batch_invariant`` on a GPU."""


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
        enforce_eager: bool = False,
        batch_invariant: bool = False,
    ) -> None:
        """Load ``folder``; ModelError if it can't be served.

        ``device`` is one of engine.device. ``dtype`` is "float32", "bfloat16", "float16" (GPU only) or "auto", the
        folder's own. ``quantization`` is "none"
        or "int8" (CPU only): all matrices and what they multiply in 8-bit integers, the rest in ``dtype``. In
        ``packed_dir`` packed matrices are kept, and mapped by all that name it. Decode steps are recorded as CUDA
        graphs on a card, unless ``enforce_eager``. ``batch_invariant``: a token's bits depend on its own context alone
        on a GPU too, as they always do on a CPU; no step is recorded then.
        """
        self.config = config = read_model_config(folder)
        self.max_model_len = model_len(config, max_model_len)
        name = resolve_dtype(dtype, config, device)
        self._dtype: torch.dtype = getattr(torch, name)
        self._device = torch.device(torch_device(device))
        self._kernels = Kernels.of(device, batch_invariant=batch_invariant)
        self.layout = kv_layout(config, name, is_plain=has_gpu_kernels(device))
        int8 = resolve_quantization(quantization, device)
        self._is_gpu = has_gpu_kernels(device)
        self._invariant = batch_invariant and self._is_gpu
        multiply = INVARIANT if self._invariant else products(self._device.type, self._dtype, int8=int8)
        self.numerics = f"{self._kernels.variant(self._device)};{multiply};torch-{torch.__version__};{name}"
        self._scale = config.head_dim**-0.5
        self._group = config.num_heads // config.num_kv_heads
        tables = rope_tables(config.rope, config.head_dim, self.max_model_len)
        self._cos, self._sin = (table.to(self._device) for table in tables)
        weights = self._load(folder, quantization, int8, packed_dir)
        self.weight_bytes = weights.weight_bytes
        self._embedding, self._layers = weights.embedding, weights.layers
        self._final_norm, self._head = weights.final_norm, weights.head
        self._compiled = self._compiled_layers(int8=int8)
        self.is_compiled = self._compiled is not None
        self._graphs: DecodeGraphs | None = None
        self._graphs_cache: Sequence[LayerCache] | None = None
        self._recorder: Recorder | None = None
        if self._device.type == "cuda" and not enforce_eager and not self._invariant:
            self._recorder = CudaRecorder()

    def _load(self, folder: Path, quantization: str, int8: bool, packed_dir: Path | None) -> LlamaWeights:
        def build(tiles: Tiles) -> LlamaWeights:
            weights = open_weights(folder)
            return Loader(weights, self.config, self._device, self._dtype, int8, tiles, self._invariant).load()

        if packed_dir is None or self._invariant or packing(self._device.type, self._dtype, int8=int8) is None:
            return build(Tiles())
        dtype = str(self._dtype).removeprefix("torch.")
        return PackedFile(packed_dir, f"{files_fingerprint(folder, quantization)}-{dtype}").load(build)

    def forward(self, batch: Batch, cache: Sequence[LayerCache], on_layers: Callable[[int], None]) -> Tensor:
        """Write the batch's K and V into ``cache`` (by layer) and return final hidden states.

        ``[num_rows, hidden_size]`` for ``batch.output_rows``, normalized. ``on_layers`` is called with how many more
        layers are computed. The residual stream is float32 in every dtype: measured on the default model in bfloat16,
        that and unrounded logits bring the output distribution four times nearer to float32's (KL).
        """
        graphs = self._graphs_over(cache)
        hidden = graphs.run(batch) if graphs is not None else None
        if hidden is None:
            return self._forward(batch, cache, on_layers)
        on_layers(len(self._layers))
        return hidden

    def record_with(self, recorder: Recorder | None) -> None:
        """From now on record decode steps so, or not at all. On a card it is ``CudaRecorder`` from the start."""
        self._recorder, self._graphs = recorder, None

    def _graphs_over(self, cache: Sequence[LayerCache]) -> DecodeGraphs | None:
        """The graphs over this cache, made anew where it is another than before."""
        if self._recorder is not None and (self._graphs is None or self._graphs_cache is not cache):

            def compute(batch: Batch) -> Tensor:
                return self._forward(batch, cache, lambda layers: None)

            self._graphs = DecodeGraphs(compute, self._device, self.max_model_len, self._recorder)
            self._graphs_cache = cache
        return self._graphs

    def _forward(self, batch: Batch, cache: Sequence[LayerCache], on_layers: Callable[[int], None]) -> Tensor:
        eps = self.config.norm_eps
        hidden = functional.embedding(batch.token_ids, self._embedding)
        residual = hidden.float()
        hidden = self._kernels.rms_norm(hidden, self._layers[0].input_norm, eps)
        compute = self._compute if self._compiled is None else self._compiled.compute
        hidden = compute(batch, cache, hidden, residual, on_layers)
        rows = batch.output_rows
        return self._kernels.rms_norm(hidden[rows], self._final_norm, eps, residual[rows])

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 ``[num_rows, vocab_size]`` of final hidden states."""
        return self._head(hidden)

    def _compiled_layers(self, *, int8: bool) -> CompiledLayers | None:
        config = self.config
        fits = not self._is_gpu and self._dtype == torch.bfloat16 and can_compile(config, int8=int8)
        if not fits:
            return None
        sizes = DecoderSizes(
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
        return CompiledLayers(sizes, self._layers)

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
        attention = kernels.attention(batch.query_lens, batch.host_context_lens, self._group, self._dtype, self._device)
        for layer, layer_cache, norm in zip(self._layers, cache, [*norms, None], strict=True):
            hidden = layer.output(self._attend(layer, hidden, batch, layer_cache, attention))
            hidden = kernels.rms_norm(hidden, layer.mlp_norm, eps, residual)
            hidden = layer.down(kernels.silu_and_mul(layer.gate_up(hidden)))
            if norm is not None:
                hidden = kernels.rms_norm(hidden, norm, eps, residual)
            on_layers(1)
        return hidden

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
