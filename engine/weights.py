"""A model folder's tensors, memory-mapped by name, and a fingerprint of them."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.errors import ModelError
from engine.model_config import read_json

EDGE_BYTES = 1 << 20
"""How much of either end of a shard goes into the fingerprint: cheap, and any other training differs there."""

HEADER_MAX_BYTES = 100 << 20
"""The format's own limit on a header."""


@dataclass(slots=True)
class Weights:
    """Tensors of one folder by name, and the shard that holds each."""

    folder: Path
    shards: dict[str, Path]
    _open: dict[Path, Any] = field(default_factory=dict)

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor ``name``, memory-mapped, in the folder's dtype; ModelError if missing or of another shape."""
        path = self.shards.get(name)
        if path is None:
            raise ModelError(f"{self.folder} has no tensor {name}")
        tensor: Tensor = self._shard(path).get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ModelError(f"{name} has shape {list(tensor.shape)}, config.json says {list(shape)}")
        if not tensor.is_floating_point():
            raise ModelError(f"{name} has dtype {tensor.dtype}, not a floating-point one")
        return tensor

    def _shard(self, path: Path) -> Any:
        if path not in self._open:
            self._open[path] = _open_shard(path)
        return self._open[path]


def open_weights(folder: Path) -> Weights:
    """Index a folder's safetensors, single or sharded; ModelError if files are missing or truncated."""
    shards: dict[str, Path] = {}
    for path in shard_paths(folder):
        for name in _open_shard(path).keys():  # noqa: SIM118 - safe_open isn't iterable
            shards[name] = path
    return Weights(folder, shards)


def shard_paths(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder, in order of name."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        listed = _index_files(index)
    elif (folder / "model.safetensors").exists():
        listed = ["model.safetensors"]
    else:
        raise ModelError(f"{folder} has no model.safetensors")
    paths = [folder / name for name in listed]
    for path in paths:
        if path.parent != folder or not path.is_file():
            raise ModelError(f"{index} names {path.name}, which is not a file beside it")
    return paths


def weights_fingerprint(folder: Path, quantization: str = "none") -> str:
    """Identify the numbers that are computed with: the folder's, and how they are quantized at load.

    SHA-256 over config, tokenizer, and headers and both ends of each shard.
    Reads a few megabytes whatever the size of the model. 64 hexadecimal digits.
    """
    digest = hashlib.sha256()

    def add(tag: str, content: bytes) -> None:
        digest.update(f"{tag}:{len(content)}:".encode())
        digest.update(content)

    if quantization != "none":
        add("quantization", quantization.encode())
    for name in ("config.json", "tokenizer.json"):
        path = folder / name
        add(name, path.read_bytes() if path.exists() else b"")
    for path in shard_paths(folder):
        size = path.stat().st_size
        add("shard", f"{path.name} {size}".encode())
        add("header", _header(path))
        with path.open("rb") as file:
            add("first", file.read(EDGE_BYTES))
            file.seek(max(0, size - EDGE_BYTES))
            add("last", file.read(EDGE_BYTES))
    return digest.hexdigest()


def files_fingerprint(folder: Path, quantization: str = "none") -> str:
    """Identify the same on this host, where a file that was written anew counts as another. 32 hexadecimal digits.

    For what is kept beside a folder: weights that were changed in place may keep headers and ends.
    """
    digest = hashlib.sha256(weights_fingerprint(folder, quantization).encode())
    for path in shard_paths(folder):
        status = path.stat()
        digest.update(f"{path.resolve()} {status.st_ino} {status.st_size} {status.st_mtime_ns};".encode())
    return digest.hexdigest()[:32]


def _index_files(index: Path) -> list[str]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ModelError(f"{index} has no weight_map")
    return sorted({str(name) for name in names.values()})


def _header(path: Path) -> bytes:
    """Return the shard's JSON header (8 bytes little-endian length, then JSON)."""
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= HEADER_MAX_BYTES:
            raise ModelError(f"{path} is not a safetensors file")
        header = file.read(length)
    if len(header) != length:
        raise ModelError(f"{path} is truncated inside its header")
    return header


def _open_shard(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open  # here: weights that come from no file need no such package

    try:
        json.loads(_header(path))
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"{path} is truncated or damaged: {error}") from None
