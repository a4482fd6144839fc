"""The model that is planned for, known from its config and the headers of its weights alone."""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelError as EngineModelError
from engine.model_config import ModelConfig, parse_model_config, read_model_config
from engine.model_sizes import num_parameters
from kvferry.errors import ModelError
from kvferry.model_folder import check_model_folder
from kvferry.model_store import bundled_gguf, served_name
from kvferry.plan.gguf_header import GgufHeader, read_gguf_header

TOLERANCE = 0.03
"""A folder may hold tensors that aren't computed with (rotary tables); more than this is another model."""


@dataclass(frozen=True, slots=True)
class Source:
    """``file_parameters`` are the numbers in the files' tensors, 0 if there are no files; ``notes`` are sentences."""

    name: str
    config: ModelConfig
    file_parameters: int = 0
    notes: tuple[str, ...] = ()


def read_source(model: str | None) -> Source:
    """Look at a model, None for the bundled one; nothing is loaded, converted or downloaded. Raises `ModelError`."""
    try:
        return _of_folder(_folder(model), served_name(model)) if model else _bundled()
    except EngineModelError as error:
        raise ModelError(str(error)) from None


def _folder(model: str) -> Path:
    folder = Path(model).expanduser()
    if folder.exists():
        if folder.is_dir():
            return folder
        raise ModelError(f"model {folder}: not a folder (a Hugging Face model folder is needed)")
    if found := _in_hub_cache(model):
        return found
    raise ModelError(
        f"model {model}: no such folder, and not in the hub's cache. `plan` downloads nothing: give a folder, in which "
        "config.json is enough, or fetch the model first"
    )


def _in_hub_cache(model: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model, "config.json")
    except HFValidationError:  # it can't be a hub id
        return None
    return Path(found).parent if isinstance(found, str) else None


def _of_folder(folder: Path, name: str) -> Source:
    config = read_model_config(folder)
    notes = list(config.warnings)
    if not any(folder.glob("*.safetensors*")):
        notes.append("the folder has no weights: sizes are computed from config.json alone")
        return Source(name, config, 0, tuple(notes))
    check_model_folder(folder)
    found = sum(_tensor_sizes(path) for path in folder.glob("*.safetensors"))
    described = num_parameters(config)
    untied = described + config.vocab_size * config.hidden_size  # some folders store a tied head too
    if min(abs(found - described), abs(found - untied)) > TOLERANCE * described:
        notes.append(f"config.json describes {described} parameters, the folder's files hold {found}")
    return Source(name, config, found, tuple(notes))


def _tensor_sizes(path: Path) -> int:
    """Numbers in a safetensors file that has been checked, from its header."""
    with path.open("rb") as file:
        length: int = struct.unpack("<Q", file.read(8))[0]
        header: dict[str, Any] = json.loads(file.read(length))
    try:
        return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    except (KeyError, TypeError):
        raise ModelError(f"model {path.parent}: {path.name} has no readable header") from None


def _bundled() -> Source:
    path = bundled_gguf()
    header = read_gguf_header(path)
    config = parse_model_config(_config_fields(header), path.parent)
    return Source(served_name(None), config, sum(header.tensors.values()))


def _config_fields(header: GgufHeader) -> dict[str, Any]:
    """The fields of config.json that the conversion makes of a Llama GGUF file; it writes bfloat16."""
    fields = header.fields

    def of_llama(name: str) -> Any:
        return fields.get(f"llama.{name}")

    return {
        "architectures": ["LlamaForCausalLM"] if fields.get("general.architecture") == "llama" else [],
        "vocab_size": of_llama("vocab_size") or fields.get("tokenizer.ggml.tokens"),
        "hidden_size": of_llama("embedding_length"),
        "intermediate_size": of_llama("feed_forward_length"),
        "num_hidden_layers": of_llama("block_count"),
        "num_attention_heads": of_llama("attention.head_count"),
        "num_key_value_heads": of_llama("attention.head_count_kv"),
        "head_dim": of_llama("attention.key_length"),
        "max_position_embeddings": of_llama("context_length"),
        "rms_norm_eps": of_llama("attention.layer_norm_rms_epsilon"),
        "rope_theta": of_llama("rope.freq_base"),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "dtype": "bfloat16",
    }
