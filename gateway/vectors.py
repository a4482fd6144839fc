"""Vectors as workers send them: float32 in little-endian order."""

import struct


def floats_of(vector: bytes) -> list[float]:
    """The same as numbers."""
    return list(struct.unpack(f"<{len(vector) // 4}f", vector))
