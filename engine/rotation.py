"""A turned basis for a model's hidden state, in which no number stands out.

A few of a hidden state's numbers are far larger than the others, always the same ones. Quantized with one scale, the
others lose their last digits to them. In a turned basis they are spread over all numbers (QuaRot, arXiv:2404.00456).
The turn is orthogonal and changes no result but by rounding; it is taken into the weights once, when they are loaded.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def turned(x: Tensor) -> Tensor:
    """Turn the last axis of ``[..., size]``, in float32, by one orthogonal matrix a size.

    It is Hadamard's matrix for the size's largest power of two, times the cosine transform of the odd rest. The order
    of all sums is fixed.
    """
    size = x.shape[-1]
    power = size & -size
    y = x.float().reshape(-1, power)
    half = 1
    while half < power:
        low, high = y.view(-1, 2, half).unbind(1)
        y = torch.stack((low + high, low - high), dim=1)
        half *= 2
    y = y.view(-1, size // power, power) / math.sqrt(power)
    return _cosines(y).view(x.shape)


def _cosines(x: Tensor) -> Tensor:
    """Orthonormal cosine transform of the middle axis of ``[rows, size, width]``, a term at a time."""
    size = x.shape[1]
    if size == 1:
        return x
    steps = torch.arange(size, dtype=torch.float64)
    matrix = torch.cos(math.pi / size * (steps + 0.5) * steps[:, None]) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    weights = matrix.float()
    result = torch.zeros_like(x)
    for term in range(size):
        result += weights[:, term, None] * x[:, term : term + 1]
    return result
