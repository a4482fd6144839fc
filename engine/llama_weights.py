"""The Llama family's weights as they are computed with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.linear import Head, Linear, head_packing, packing
from engine.model_config import ModelConfig
from engine.model_sizes import head_is_copy
from engine.packed_file import CACHE_LINE, Tiles
from engine.rotation import turned
from engine.weights import Weights
from kvferry_kernels import ops


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


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """All weights. ``embedding`` is ``[vocab_size, hidden_size]``, ``final_norm`` ``[hidden_size]``."""

    embedding: Tensor
    layers: list[Layer]
    final_norm: Tensor
    head: Head
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class Loader:
    """Takes a folder's tensors to a device in one dtype; matrices that ``tiles`` knows aren't read.

    ``int8``: matrices are quantized to 8 bits, and the hidden state's basis is turned. For that each norm's weight is
    taken into the matrices behind it, since only a norm without weights turns with its input. ``batch_invariant``:
    matrices are multiplied by the GPU's kernel whose rows don't depend on their number.
    """

    weights: Weights
    config: ModelConfig
    device: torch.device
    dtype: torch.dtype
    int8: bool
    tiles: Tiles
    batch_invariant: bool = False

    def load(self) -> LlamaWeights:
        """All of them; ModelError for a tensor that is missing or of another shape."""
        config = self.config
        vocab, hidden = config.vocab_size, config.hidden_size
        numbers = self.weights.take("model.embed_tokens.weight", vocab, hidden)
        embedding = self._embedding(numbers)
        if not config.tied_embeddings:
            numbers = self.weights.take("lm_head.weight", vocab, hidden)
        final_norm = self.weights.take("model.norm.weight", hidden)
        if self.int8:
            head = self._head(lambda: turned(numbers.float() * final_norm))
        else:
            head = self._head(lambda: embedding if config.tied_embeddings else numbers)
        layers = [self._layer(f"model.layers.{i}.") for i in range(config.num_layers)]
        norm = self._norm(final_norm)
        shared = config.tied_embeddings and not head_is_copy(config, self.device.type)
        num_bytes = embedding.nbytes + norm.nbytes + (0 if shared else head.weight_bytes)
        return LlamaWeights(embedding, layers, norm, head, num_bytes + sum(layer.weight_bytes for layer in layers))

    def _embedding(self, numbers: Tensor) -> Tensor:
        """In a turned basis it takes long to make, and is kept too, if it has whole cache lines."""
        if not self.int8:
            return self._place(numbers)

        def make() -> Tensor:
            return self._place(turned(numbers))

        fits = numbers.numel() * self.dtype.itemsize % CACHE_LINE == 0
        return self.tiles.get("embedding", make) if fits else make()

    def _layer(self, prefix: str) -> Layer:
        config = self.config
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        queries, keys = config.num_heads * dim, config.num_kv_heads * dim
        heads = {"self_attn.q": queries, "self_attn.k": keys, "self_attn.v": keys}
        input_norm, mlp_norm = (
            self.weights.take(f"{prefix}{name}_layernorm.weight", hidden) for name in ("input", "post_attention")
        )
        q_norm, k_norm = (
            self._place(self.weights.take(f"{prefix}self_attn.{name}_norm.weight", dim)) if config.head_norm else None
            for name in ("q", "k")
        )
        return Layer(
            input_norm=self._norm(input_norm),
            qkv=self._reading(prefix, input_norm, config.qkv_bias, heads),
            q_norm=q_norm,
            k_norm=k_norm,
            output=self._writing(f"{prefix}self_attn.o_proj", queries, config.output_bias),
            mlp_norm=self._norm(mlp_norm),
            gate_up=self._reading(prefix, mlp_norm, config.mlp_bias, {"mlp.gate": inner, "mlp.up": inner}),
            down=self._writing(f"{prefix}mlp.down_proj", inner, config.mlp_bias, ops.GROUP),
        )

    def _reading(self, name: str, norm: Tensor, bias: bool, parts: dict[str, int]) -> Linear:
        """Several matrices in one that multiplies the normalized hidden state; ``name`` begins theirs."""
        names = [(f"{name}{part}_proj", size) for part, size in parts.items()]

        def matrix() -> Tensor:
            joined = torch.cat([self.weights.take(f"{part}.weight", size, len(norm)) for part, size in names])
            return turned(joined.float() * norm) if self.int8 else joined

        added = torch.cat([self.weights.take(f"{part}.bias", size) for part, size in names]) if bias else None
        return self._linear(name + "+".join(parts), (sum(parts.values()), len(norm)), matrix, added)

    def _writing(self, name: str, inputs: int, bias: bool, group: int = ops.WHOLE_ROW) -> Linear:
        """A matrix whose results are added to the hidden state; ``group`` as for ``Linear.of_tiles``."""
        hidden = self.config.hidden_size

        def matrix() -> Tensor:
            plain = self.weights.take(f"{name}.weight", hidden, inputs)
            return turned(plain.T).T if self.int8 else plain

        added = self.weights.take(f"{name}.bias", hidden) if bias else None
        if added is not None and self.int8:
            added = turned(added)
        return self._linear(name, (hidden, inputs), matrix, added, group)

    def _linear(
        self,
        name: str,
        shape: tuple[int, int],
        matrix: Callable[[], Tensor],
        bias: Tensor | None,
        group: int = ops.WHOLE_ROW,
    ) -> Linear:
        placed = None if bias is None else self._place(bias)
        if self.batch_invariant:
            return Linear.invariant(self._place(matrix()), placed)
        pack = packing(self.device.type, self.dtype, int8=self.int8)
        if pack is None:
            return Linear(self._place(matrix()), placed)
        tiles = self.tiles.get(name, lambda: pack(self._unpacked(matrix())))
        return Linear.of_tiles(tiles, *shape, placed, self.dtype, group)

    def _head(self, matrix: Callable[[], Tensor]) -> Head:
        if self.batch_invariant:
            return Head.invariant(self._place(matrix()))
        pack = head_packing(self.device.type, self.dtype, int8=self.int8)
        if pack is None:
            return Head(self._place(matrix()))
        tiles = self.tiles.get("head", lambda: pack(self._unpacked(matrix())))
        return Head.of_tiles(tiles, self.config.vocab_size, self.config.hidden_size)

    def _unpacked(self, matrix: Tensor) -> Tensor:
        """What is packed: for 8-bit integers as exact as it is, so that it is rounded once."""
        return matrix if self.int8 else self._place(matrix)

    def _norm(self, weight: Tensor) -> Tensor:
        return self._place(torch.ones_like(weight) if self.int8 else weight)

    def _place(self, tensor: Tensor) -> Tensor:
        return tensor.to(device=self.device, dtype=self.dtype)
