"""The header of a GGUF file (version 2 or 3): its fields and its tensors' names and sizes. Contents aren't read.

The format: magic, version, number of tensors, number of fields; each field a name, a type and a value; each
tensor a name, its dimensions, a type and an offset. All little-endian; texts and lists begin with their length.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from kvferry.errors import ModelError

MAGIC = b"GGUF"
MAX_ENTRIES = 1 << 20
"""Fields, tensors or items of one list: the longest known list is a vocabulary of a quarter million."""
MAX_TEXT_BYTES = 1 << 20
_TEXT, _LIST = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

Number = int | float | bool


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """``fields``: numbers and texts as they are, of a list only its length. ``tensors``: numbers in each."""

    fields: dict[str, Number | str]
    tensors: dict[str, int]


def read_gguf_header(path: Path) -> GgufHeader:
    """Read the header. Raises `ModelError` if the file is no GGUF file or ends too early."""
    try:
        with path.open("rb") as file:
            return _header(file)
    except (OSError, ValueError, struct.error) as error:
        raise ModelError(f"model {path}: not readable as GGUF ({error})") from None


def _header(file: BinaryIO) -> GgufHeader:
    if file.read(len(MAGIC)) != MAGIC:
        raise ValueError("it begins otherwise")
    version = _number(file, "I")
    if version not in (2, 3):
        raise ValueError(f"version {version} isn't known")
    num_tensors, num_fields = _count(file), _count(file)
    fields: dict[str, Number | str] = {}
    for _ in range(num_fields):
        name = _text(file)
        fields[name] = _value(file, _number(file, "I"))
    tensors: dict[str, int] = {}
    for _ in range(num_tensors):
        name = _text(file)
        shape = [_number(file, "Q") for _ in range(_number(file, "I"))]
        file.seek(struct.calcsize("<IQ"), 1)  # type and offset
        tensors[name] = math.prod(shape)
    return GgufHeader(fields, tensors)


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _TEXT:
        return _text(file)
    if kind != _LIST:
        return _number(file, _format(kind))
    kind, length = _number(file, "I"), _count(file)
    if kind == _TEXT:
        for _ in range(length):
            _text(file)
    else:
        file.seek(length * struct.calcsize(_format(kind)), 1)
    return length


def _format(kind: int) -> str:
    if kind not in _NUMBERS:
        raise ValueError(f"a field has unknown type {kind}")
    return _NUMBERS[kind]


def _number(file: BinaryIO, code: str) -> Any:
    return struct.unpack("<" + code, file.read(struct.calcsize("<" + code)))[0]


def _count(file: BinaryIO) -> int:
    count: int = _number(file, "Q")
    if count > MAX_ENTRIES:
        raise ValueError(f"it promises {count} entries")
    return count


def _text(file: BinaryIO) -> str:
    length = _number(file, "Q")
    if length > MAX_TEXT_BYTES:
        raise ValueError(f"it promises a text of {length} bytes")
    return file.read(length).decode(errors="replace")
