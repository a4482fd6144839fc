"""What follows from a model's config alone: number format, KV layout, bytes of weights, context. Imports no torch."""

from __future__ import annotations

from engine.errors import ModelError
from engine.layout import BLOCK_SIZE, ITEM_BYTES, CacheGroup, KVLayout
from engine.model_config import ModelConfig

CPU_DTYPES = ("bfloat16", "float32")


def resolve_dtype(asked: str, config: ModelConfig, device: str) -> str:
    """Resolve "auto": the folder's dtype, with bfloat16 for float16 on a CPU. ModelError for what isn't built."""
    on_cpu = device == "cpu"
    name = config.dtype if asked == "auto" else asked
    if on_cpu and asked == "auto" and name == "float16":
        name = "bfloat16"
    if name not in (CPU_DTYPES if on_cpu else (*CPU_DTYPES, "float16")):
        raise ModelError(f"dtype {name} isn't built on {device} (built: {', '.join(CPU_DTYPES)})")
    return name


def model_len(config: ModelConfig, asked: int | None) -> int:
    """Longest context in tokens: what is asked for, or the model's own. ModelError if it has no such positions."""
    if asked is None:
        return config.max_len
    if not 1 <= asked <= config.max_len:
        raise ModelError(f"max model length {asked} is not in 1 to {config.max_len}, the model's own")
    return asked


def kv_layout(config: ModelConfig, dtype: str, block_size: int = BLOCK_SIZE) -> KVLayout:
    """How the model's K and V lie in blocks: one group, since all layers are alike."""
    group = CacheGroup(tuple(range(config.num_layers)), config.num_kv_heads, config.head_dim)
    return KVLayout((group,), dtype, block_size)


def num_parameters(config: ModelConfig) -> int:
    """Numbers in the model's tensors: matrices, biases and norms, a tied embedding once."""
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_heads * dim, config.num_kv_heads * dim
    joined = queries + 2 * keys
    matrices = hidden * joined + queries * hidden + 3 * hidden * inner
    biases = joined * config.qkv_bias + hidden * config.output_bias + (2 * inner + hidden) * config.mlp_bias
    norms = 2 * hidden + 2 * dim * config.head_norm
    embeddings = config.vocab_size * hidden * (1 if config.tied_embeddings else 2)
    return embeddings + config.num_layers * (matrices + biases + norms) + hidden


def head_is_copy(config: ModelConfig, device: str) -> bool:
    """Whether a tied embedding is in memory twice: a CPU's products want it in an order of their own."""
    return config.tied_embeddings and device == "cpu"


def weight_bytes(config: ModelConfig, dtype: str, device: str) -> int:
    """Bytes of the weights as they are computed with, in ``dtype`` on "cpu" or "cuda"."""
    copied = config.vocab_size * config.hidden_size if head_is_copy(config, device) else 0
    return ITEM_BYTES[dtype] * (num_parameters(config) + copied)
