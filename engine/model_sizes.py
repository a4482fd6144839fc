"""What follows from a model's config alone: number format, KV layout, bytes of weights, context. Imports no torch."""

from __future__ import annotations

from engine.errors import ModelError
from engine.layout import BLOCK_SIZE, ITEM_BYTES, CacheGroup, KVLayout
from engine.model_config import ModelConfig

CPU_DTYPES = ("bfloat16", "float32")
INT8, NO_QUANTIZATION = "int8", "none"

INT8_OUTPUT_BYTES = 4
"""Beside its weights an output of an 8-bit matrix has a scale."""


def resolve_dtype(asked: str, config: ModelConfig, device: str) -> str:
    """Resolve "auto": the folder's dtype, with bfloat16 for float16 on a CPU. ModelError for what isn't built."""
    on_cpu = device == "cpu"
    name = config.dtype if asked == "auto" else asked
    if on_cpu and asked == "auto" and name == "float16":
        name = "bfloat16"
    if name not in (CPU_DTYPES if on_cpu else (*CPU_DTYPES, "float16")):
        raise ModelError(f"dtype {name} isn't built on {device} (built: {', '.join(CPU_DTYPES)})")
    return name


def resolve_quantization(asked: str, device: str) -> bool:
    """Whether matrices are computed in 8-bit integers. ModelError for what isn't built."""
    if asked not in (NO_QUANTIZATION, INT8):
        raise ModelError(f"quantization {asked} isn't built (built: {INT8})")
    if asked == INT8 and device != "cpu":
        raise ModelError(f"--quantization {INT8} isn't built on {device}, only on a CPU (--device cpu)")
    return asked == INT8


def model_len(config: ModelConfig, asked: int | None) -> int:
    """Longest context in tokens: what is asked for, or the model's own. ModelError if it has no such positions."""
    if asked is None:
        return config.max_len
    if not 1 <= asked <= config.max_len:
        raise ModelError(f"max model length {asked} is not in 1 to {config.max_len}, the model's own")
    return asked


def kv_layout(config: ModelConfig, dtype: str, block_size: int = BLOCK_SIZE, *, is_plain: bool = False) -> KVLayout:
    """How the model's K and V lie in blocks: one group, since all layers are alike."""
    group = CacheGroup(tuple(range(config.num_layers)), config.num_kv_heads, config.head_dim)
    return KVLayout((group,), dtype, block_size, is_plain)


def num_parameters(config: ModelConfig) -> int:
    """Numbers in the model's tensors: matrices, biases and norms, a tied embedding once."""
    embeddings = config.vocab_size * config.hidden_size * (1 if config.tied_embeddings else 2)
    matrices = sum(outputs * inputs for outputs, inputs in _matrices(config))
    return embeddings + config.num_layers * (matrices + _layer_vectors(config)) + config.hidden_size


def int8_bytes(outputs: int, inputs: int) -> int:
    """Bytes of a matrix in 8-bit integers."""
    return outputs * (inputs + INT8_OUTPUT_BYTES)


def _matrices(config: ModelConfig) -> list[tuple[int, int]]:
    """Outputs and inputs of each matrix of a layer."""
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_heads * dim, config.num_kv_heads * dim
    return [(queries + 2 * keys, hidden), (hidden, queries), (2 * inner, hidden), (hidden, inner)]


def _layer_vectors(config: ModelConfig) -> int:
    """Numbers of a layer's biases and norms."""
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    joined = (config.num_heads + 2 * config.num_kv_heads) * dim
    biases = joined * config.qkv_bias + hidden * config.output_bias + (2 * inner + hidden) * config.mlp_bias
    return biases + 2 * hidden + 2 * dim * config.head_norm


def head_is_copy(config: ModelConfig, device: str) -> bool:
    """Whether a tied embedding is in memory twice: a CPU's products want it in an order of their own."""
    return config.tied_embeddings and device == "cpu"


def weight_bytes(config: ModelConfig, dtype: str, device: str, *, int8: bool = False) -> int:
    """Bytes of the weights as they are computed with, in ``dtype`` on "cpu" or "cuda".

    With ``int8`` all matrices are in 8-bit integers; the embedding, norms and biases stay in ``dtype``.
    """
    if int8:
        matrices = sum(int8_bytes(*shape) for shape in _matrices(config)) * config.num_layers
        vectors = _layer_vectors(config) * config.num_layers + config.hidden_size
        embedding = config.vocab_size * config.hidden_size
        head = int8_bytes(config.vocab_size, config.hidden_size)
        return ITEM_BYTES[dtype] * (embedding + vectors) + matrices + head
    copied = config.vocab_size * config.hidden_size if head_is_copy(config, device) else 0
    return ITEM_BYTES[dtype] * (num_parameters(config) + copied)
