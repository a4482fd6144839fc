"""Where a model is computed, and by which kernels. Imports no torch."""

from __future__ import annotations

CPU, CUDA, INTERPRETER = "cpu", "cuda", "interpreter"
"""The interpreter runs the GPU's kernels on a CPU, thousands of times slower: it is for trying them."""


def torch_device(name: str) -> str:
    """What torch calls it."""
    return CPU if name == INTERPRETER else name


def has_gpu_kernels(name: str) -> bool:
    """Whether the GPU's kernels compute there, over a cache in their order."""
    return name != CPU
