"""What bytes a vocabulary entry stands for, by the kind of its tokenizer."""

import re
from collections.abc import Callable
from typing import Any

PieceToBytes = Callable[[str], bytes]

_SPACE_MARK = "\N{LOWER ONE EIGHTH BLOCK}"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's alphabet: printable bytes stand for themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + place): byte for place, byte in enumerate(moved)})
    return alphabet


_ALPHABET = _byte_alphabet()


def _byte_level(piece: str) -> bytes:
    """Read a byte-level piece; one with another character (an added token) stands for itself."""
    values = [_ALPHABET.get(char) for char in piece]
    known = [value for value in values if value is not None]
    return bytes(known) if len(known) == len(values) else piece.encode("utf-8")


def _space_marked(piece: str) -> bytes:
    """Read a SentencePiece piece: a mark for the space, ``<0x41>`` for a single byte."""
    byte = _BYTE_PIECE.fullmatch(piece)
    if byte is not None:
        return bytes([int(byte[1], 16)])
    return piece.replace(_SPACE_MARK, " ").encode("utf-8")


def piece_decoder(decoder: dict[str, Any] | None) -> PieceToBytes | None:
    """Return the reader for a tokenizer.json's ``decoder``; None if it is of an unknown kind."""
    steps = _flatten(decoder)
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return _byte_level
    if "Metaspace" in kinds or any(_replaces_the_mark(step) for step in steps):
        return _space_marked
    return None


def _flatten(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder.get("type") == "Sequence":
        return [step for each in decoder.get("decoders", []) for step in _flatten(each)]
    return [decoder]


def _replaces_the_mark(step: dict[str, Any]) -> bool:
    return step.get("type") == "Replace" and step.get("pattern") == {"String": _SPACE_MARK}
