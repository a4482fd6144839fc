"""A Hugging Face model folder, checked before anything is started from it."""

import json
import struct
from pathlib import Path
from typing import Any

from kvferry.errors import ModelError

ARCHITECTURES = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
MAX_JSON_BYTES = 64 << 20
"""Longest config, index or safetensors header that is read; the largest known index has 10 MB."""


def check_model_folder(folder: Path) -> None:
    """Raise `ModelError` unless `folder` holds a whole model of a served architecture."""
    if not folder.exists():
        raise ModelError(f"model {folder}: no such folder")
    if not folder.is_dir():
        raise ModelError(f"model {folder}: not a folder (a Hugging Face model folder is needed)")
    _check_architecture(folder)
    for name in _weight_files(folder):
        _check_safetensors(folder / name)
    if not (folder / "tokenizer.json").is_file():
        raise ModelError(f"model {folder}: tokenizer.json is missing")
    _read_json(folder / "tokenizer.json")


def _check_architecture(folder: Path) -> None:
    config = _read_json(folder / "config.json")
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise ModelError(f"model {folder}: config.json names no architecture")
    if not ARCHITECTURES.intersection(str(name) for name in architectures):
        raise ModelError(
            f"model {folder}: architecture {architectures[0]!s:.80} is not served "
            f"(served: {', '.join(sorted(ARCHITECTURES))})"
        )


def _weight_files(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        if not (folder / "model.safetensors").exists():
            raise ModelError(f"model {folder}: model.safetensors is missing")
        return ["model.safetensors"]
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"model {folder}: {index.name} has no weight_map")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name:
            raise ModelError(f"model {folder}: {index.name} names a file outside the folder")
        if not (folder / name).is_file():
            raise ModelError(f"model {folder}: {name} is missing, though {index.name} names it")
    return names


def _check_safetensors(path: Path) -> None:
    """Compare the end of the data that the header promises with the file's size.

    The format is an 8-byte little-endian header length, the JSON header, then the data.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        header_len = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if header_len > min(size - 8, MAX_JSON_BYTES):
            raise ModelError(f"model {path.parent}: {path.name} is truncated or no safetensors file")
        header = _parse_json(file.read(header_len), path)
    try:
        ends = [int(v["data_offsets"][1]) for k, v in header.items() if k != "__metadata__"]
    except (KeyError, IndexError, TypeError, ValueError):
        raise ModelError(f"model {path.parent}: {path.name} has no readable header") from None
    expected = 8 + header_len + max(ends, default=0)
    if size != expected:
        raise ModelError(
            f"model {path.parent}: {path.name} is {'truncated' if size < expected else 'too long'} "
            f"({size} bytes, its header says {expected})"
        )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ModelError(f"model {path.parent}: {path.name} is missing")
    if path.stat().st_size > MAX_JSON_BYTES:
        raise ModelError(f"model {path.parent}: {path.name} is longer than {MAX_JSON_BYTES} bytes")
    return _parse_json(path.read_bytes(), path)


def _parse_json(raw: bytes, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):  # ValueError: no JSON, or no UTF-8
        raise ModelError(f"model {path.parent}: {path.name} is not readable as JSON") from None
    if not isinstance(value, dict):
        raise ModelError(f"model {path.parent}: {path.name} is not a JSON object")
    return value
