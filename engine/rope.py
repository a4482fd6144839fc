"""Rotary position embeddings: frequencies of each scaling, and cos and sin tables.

Scalings: "linear" divides all frequencies by a factor; "llama3" is Meta's Llama 3.1 rule (long waves
divided, short ones kept, a ramp between); "yarn" is Peng et al. 2023, arXiv 2309.00071. The tables
follow the usual float32 order of operations (frequency, then angle), so that they equal other
implementations' to the last bits of cos and sin.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from engine.model_config import RopeConfig

ROWS_AT_ONCE = 4096
"""Positions whose angles are held in float64 at a time."""


def frequencies(rope: RopeConfig, head_dim: int) -> tuple[Tensor, float]:
    """Angle per position of each pair, float32 ``[head_dim / 2]``, and the factor on cos and sin."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    waves: Tensor = rope.theta**exponents
    plain = 1.0 / waves
    if rope.kind == "linear":
        return plain / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(plain, rope), 1.0
    if rope.kind == "yarn":
        return _yarn(waves, rope, head_dim), _yarn_attention(rope)
    return plain, 1.0


def rope_tables(rope: RopeConfig, head_dim: int, max_len: int) -> tuple[Tensor, Tensor]:
    """Cos and sin of every position, each float32 ``[max_len, head_dim / 2]``.

    The angle is rounded to float32, its cos and sin are computed in float64: a row is then the same
    whatever ``max_len`` is, and whichever vector width the library uses.
    """
    frequency, factor = frequencies(rope, head_dim)
    cos = torch.empty(max_len, head_dim // 2)
    sin = torch.empty_like(cos)
    for start in range(0, max_len, ROWS_AT_ONCE):
        rows = slice(start, min(start + ROWS_AT_ONCE, max_len))
        positions = torch.arange(rows.start, rows.stop, dtype=torch.float32)
        angles = torch.outer(positions, frequency).double()
        cos[rows] = (angles.cos() * factor).float()
        sin[rows] = (angles.sin() * factor).float()
    return cos, sin


def _llama3(plain: Tensor, rope: RopeConfig) -> Tensor:
    wavelength = 2 * math.pi / plain
    long_wave = rope.original_max_len / rope.low_freq_factor
    short_wave = rope.original_max_len / rope.high_freq_factor
    ramp = rope.original_max_len / wavelength - rope.low_freq_factor
    ramp = ramp / (rope.high_freq_factor - rope.low_freq_factor)
    between = (1 - ramp) * plain / rope.factor + ramp * plain
    scaled = torch.where(wavelength > long_wave, plain / rope.factor, plain)
    middle = (wavelength >= short_wave) & (wavelength <= long_wave)
    return torch.where(middle, between, scaled)


def _yarn(waves: Tensor, rope: RopeConfig, head_dim: int) -> Tensor:
    low, high = (_yarn_pair(rotations, rope, head_dim) for rotations in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    pairs = torch.arange(head_dim // 2, dtype=torch.float32)
    keep = 1 - ((pairs - low) / (high - low)).clamp(0, 1)
    return 1.0 / (rope.factor * waves) * (1 - keep) + 1.0 / waves * keep


def _yarn_pair(rotations: float, rope: RopeConfig, head_dim: int) -> float:
    """Which pair turns ``rotations`` times over the trained length (a fractional index)."""
    turns = rope.original_max_len / (rotations * 2 * math.pi)
    return head_dim * math.log(turns) / (2 * math.log(rope.theta))


def _yarn_attention(rope: RopeConfig) -> float:
    """Factor on cos and sin, which stands for the temperature of section 3.4 of the paper."""

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.mscale) / scale(rope.mscale_all_dim)
    return scale(1.0)
