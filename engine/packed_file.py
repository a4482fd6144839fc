"""Matrices in the order of the kernels, kept in a file: packed once, then mapped by all workers of a host.

The file is in safetensors format (an 8-byte length, a JSON header, the tensors' bytes), written here so that every
tensor begins on a cache line, which its own writer doesn't promise. It holds a digest of its contents, is written under
a lock and appears whole or not at all; one that is damaged is made anew.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from kvferry_kernels import ops

MAX_FILES = 4
"""In a folder: of other models, or of versions before. Those that were used longest ago are removed."""

CACHE_LINE = 64
LENGTH_BYTES = 8
DIGEST = "xxh3_128"
DTYPES = {torch.bfloat16: "BF16", torch.float32: "F32", torch.uint8: "U8"}

T = TypeVar("T")

log = logging.getLogger("engine")


class Tiles:
    """Packed matrices by name: those of a file, or made on the way."""

    def __init__(self, known: dict[str, Tensor] | None = None) -> None:
        """``known`` are those that need not be made."""
        self._known = known or {}
        self.made: dict[str, Tensor] = {}

    def get(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """The matrix of this name; ``make`` packs it if it isn't known."""
        if name in self._known:
            return self._known[name]
        tensor = self.made[name] = make()
        return tensor


class PackedFile:
    """One model's packed matrices on disk."""

    def __init__(self, folder: Path, numbers: str) -> None:
        """``numbers`` tells apart what is packed: these weights, as files, and how they are quantized."""
        version = torch.__version__.replace("+", "-")
        self.path = folder / f"{numbers}-{ops.PACKING}-{version}.safetensors"

    def load(self, build: Callable[[Tiles], T]) -> T:
        """Return ``build``'s result with matrices of the file, which is made first if need be.

        Where no file can be kept, the matrices are this process's own, and a warning says so.
        """
        known: dict[str, Tensor] | None = None
        built: T | None = None
        try:
            with self._lock():
                known = self._read()
                if known is None:
                    log.info("packing_weights file=%s", self.path)
                    tiles = Tiles()
                    built = build(tiles)
                    if tiles.made:
                        self._write(tiles.made)
                        known = self._read()
        except OSError as error:
            log.warning("weights_not_shared folder=%s reason=%s", self.path.parent, error)
        if known is None:
            return build(Tiles()) if built is None else built
        return build(Tiles(known))

    @contextmanager
    def _lock(self) -> Iterator[None]:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.path.parent / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _read(self) -> dict[str, Tensor] | None:
        """Map the file; None if there is none, or if it isn't whole."""
        from safetensors import SafetensorError, safe_open  # here: who packs nothing needs no such package

        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt", device="cpu") as file:
                told = (file.metadata() or {}).get(DIGEST, "")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it isn't iterable
        except SafetensorError as error:
            log.warning("packed_file_damaged file=%s reason=%s", self.path, error)
            return None
        if told != _digest(tensors):
            log.warning("packed_file_damaged file=%s reason=its contents have another digest", self.path)
            return None
        os.utime(self.path)
        return tensors

    def _write(self, tensors: dict[str, Tensor]) -> None:
        for left in self.path.parent.glob("*.part"):
            left.unlink()  # of a writer that was killed: whoever writes has the lock
        header = _header(tensors)
        draft = self.path.with_suffix(f".{os.getpid()}.part")
        try:
            with open(draft, "xb", opener=_private) as file:
                file.write(struct.pack("<Q", len(header)) + header)
                for name in sorted(tensors):
                    file.write(_bytes(tensors[name]))
            draft.replace(self.path)
        finally:
            draft.unlink(missing_ok=True)
        self._tidy()

    def _tidy(self) -> None:
        files = sorted(self.path.parent.glob("*.safetensors"), key=lambda path: path.stat().st_mtime)
        for path in files[:-MAX_FILES]:
            path.unlink()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.view(torch.uint8).numpy().data.cast("B")


def _digest(tensors: dict[str, Tensor]) -> str:
    import xxhash

    state = xxhash.xxh3_128()
    for name in sorted(tensors):
        state.update(f"{name} {list(tensors[name].shape)}".encode())
        state.update(_bytes(tensors[name]))
    return state.hexdigest()


def _header(tensors: dict[str, Tensor]) -> bytes:
    """What stands before the contents, filled up with spaces so that they begin on a cache line."""
    entries: dict[str, object] = {"__metadata__": {DIGEST: _digest(tensors)}}
    end = 0
    for name in sorted(tensors):
        start, end = end, end + tensors[name].nbytes
        if start % CACHE_LINE:
            raise ValueError(f"what stands before {name} is no whole number of cache lines")
        entries[name] = {
            "dtype": DTYPES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-(LENGTH_BYTES + len(text)) % CACHE_LINE)
