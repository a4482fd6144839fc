"""Philox4x32-10 in plain integers: random numbers as a function of (seed, choice, position) alone.

Algorithm: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

Words4 = tuple[int, int, int, int]

_ROUNDS = 10
_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF


def philox4x32(counter: Words4, key: tuple[int, int]) -> Words4:
    """Four random 32-bit words for a counter of four and a key of two 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        low, high = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
        c0, c1, c2, c3 = (high >> 32) ^ c1 ^ k0, high & _MASK, (low >> 32) ^ c3 ^ k1, low & _MASK
        k0, k1 = (k0 + _WEYL_0) & _MASK, (k1 + _WEYL_1) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, choice: int, position: int) -> float:
    """One number in (0, 1] for the token at ``position`` of a choice's output.

    Key (seed low, seed high), counter (position, choice, 0, 0); the first two words are 64 bits, of
    which the upper 53, plus one half, are scaled by 2**-53.
    """
    key = (seed & _MASK, (seed >> 32) & _MASK)
    x0, x1, _, _ = philox4x32((position & _MASK, choice & _MASK, 0, 0), key)
    return ((((x0 << 32) | x1) >> 11) + 0.5) * 2.0**-53
