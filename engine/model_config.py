"""A model's shape, read from a Hugging Face folder's config.json. Imports no torch.

Models of the Llama family: Llama (and SmolLM), Mistral, Qwen2, Qwen3 (dense).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelError

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}

CONFIG_MAX_BYTES = 1 << 20
"""Real files have a few kilobytes; a longer one is not a config."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: ``kind`` is "default", "linear", "llama3" or "yarn"; fields of other kinds are unused."""

    kind: str
    theta: float
    factor: float = 1.0
    original_max_len: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The numbers a forward pass needs. ``max_len`` is the longest context, in tokens."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeConfig
    max_len: int
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    head_norm: bool
    dtype: str
    eos_ids: tuple[int, ...]
    warnings: tuple[str, ...] = ()


def read_json(path: Path) -> dict[str, Any]:
    """Read a small JSON object; what is missing, too long or not an object is a ModelError."""
    try:
        if path.stat().st_size > CONFIG_MAX_BYTES:
            raise ModelError(f"{path} is longer than {CONFIG_MAX_BYTES} bytes")
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} can't be read: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object")
    return value


def read_model_config(folder: Path) -> ModelConfig:
    """Read ``folder``/config.json and generation_config.json; what isn't built is a ModelError."""
    return parse_model_config(read_json(folder / "config.json"), folder)


def parse_model_config(raw: dict[str, Any], folder: Path) -> ModelConfig:
    """As ``read_model_config``, from the fields of a config.json that belongs to ``folder``."""
    try:
        return _model_config(raw, folder)
    except KeyError as error:
        raise ModelError(f"{folder / 'config.json'} lacks {error}") from None
    except (TypeError, ValueError) as error:
        raise ModelError(f"{folder / 'config.json'} has an odd value: {error}") from None


def _model_config(raw: dict[str, Any], folder: Path) -> ModelConfig:
    family = _family(raw)
    heads = int(raw["num_attention_heads"])
    max_len = int(raw["max_position_embeddings"])
    window = _window(raw, family)
    warnings: tuple[str, ...] = ()
    if window and window < max_len:
        text = f"sliding window attention isn't built: contexts are limited to the window of {window} tokens"
        max_len, warnings = window, (text,)
    attention_bias = bool(raw.get("attention_bias", False))
    config = ModelConfig(
        family=family,
        vocab_size=int(raw["vocab_size"]),
        hidden_size=int(raw["hidden_size"]),
        intermediate_size=int(raw["intermediate_size"]),
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or int(raw["hidden_size"]) // heads),
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope=_rope(raw),
        max_len=max_len,
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2" or (family != "mistral" and attention_bias),
        output_bias=family in ("llama", "qwen3") and attention_bias,
        mlp_bias=family == "llama" and bool(raw.get("mlp_bias", False)),
        head_norm=family == "qwen3",
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
        eos_ids=_eos_ids(raw, folder),
        warnings=warnings,
    )
    _check(config)
    return config


def _family(raw: dict[str, Any]) -> str:
    names = raw.get("architectures") or [raw.get("model_type", "no architecture")]
    family = ARCHITECTURES.get(names[0])
    if family is None:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(f"architecture {names[0]} isn't built (built: {known})")
    if raw.get("quantization_config"):
        raise ModelError("weights quantized in the folder aren't built: give a bf16 or fp32 folder")
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelError(f"activation {raw['hidden_act']} isn't built (built: silu)")
    return family


def _window(raw: dict[str, Any], family: str) -> int:
    """Sliding window in tokens, 0 for none."""
    window = int(raw.get("sliding_window") or 0)
    if family == "mistral":
        return window
    if family == "llama" or not raw.get("use_sliding_window"):
        return 0
    kinds = raw.get("layer_types")
    if kinds is not None:
        return window if "sliding_attention" in kinds else 0
    full_layers = int(raw.get("max_window_layers", 28))
    return window if full_layers < int(raw["num_hidden_layers"]) else 0


def _rope(raw: dict[str, Any]) -> RopeConfig:
    """Read ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling`` (older)."""
    given = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise ModelError(f"rope scaling {kind} isn't built (built: default, linear, llama3, yarn)")
    if given.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) not in (1.0, None):
        raise ModelError("partial rotary embeddings aren't built")
    trained = given.get("original_max_position_embeddings")
    trained = int(trained or raw["max_position_embeddings"])
    factor = given.get("factor") if kind != "default" else 1.0
    if factor is None and kind == "yarn":
        factor = int(raw["max_position_embeddings"]) / trained
    attention = given.get("attention_factor")
    return RopeConfig(
        kind=kind,
        theta=float(given.get("rope_theta") or raw.get("rope_theta") or 10000.0),
        factor=float(factor if factor is not None else given["factor"]),
        original_max_len=trained,
        low_freq_factor=float(given.get("low_freq_factor", 1.0)),
        high_freq_factor=float(given.get("high_freq_factor", 4.0)),
        beta_fast=float(given.get("beta_fast") or 32.0),
        beta_slow=float(given.get("beta_slow") or 1.0),
        attention_factor=None if attention is None else float(attention),
        mscale=float(given.get("mscale") or 0.0),
        mscale_all_dim=float(given.get("mscale_all_dim") or 0.0),
        truncate=bool(given.get("truncate", True)),
    )


def _eos_ids(raw: dict[str, Any], folder: Path) -> tuple[int, ...]:
    """End tokens: generation_config.json's where it has any, else config.json's."""
    path = folder / "generation_config.json"
    generation = read_json(path) if path.exists() else {}
    ids = generation.get("eos_token_id")
    ids = raw.get("eos_token_id") if ids is None else ids
    if ids is None:
        return ()
    return tuple(int(i) for i in ids) if isinstance(ids, list) else (int(ids),)


def _check(config: ModelConfig) -> None:
    sizes = (config.vocab_size, config.hidden_size, config.intermediate_size, config.num_layers)
    if min(*sizes, config.num_heads, config.num_kv_heads, config.head_dim, config.max_len) < 1:
        raise ModelError("config.json has a size below 1")
    if config.num_heads % config.num_kv_heads:
        text = f"{config.num_heads} query heads don't divide over {config.num_kv_heads} KV heads"
        raise ModelError(text)
    if config.head_dim % 2:
        raise ModelError(f"head_dim {config.head_dim} is odd: rotary embeddings need pairs")
