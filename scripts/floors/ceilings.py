"""What this machine can do at best: products a second, bytes read a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.linear import Linear
from engine.multiply import can_pack, multiply_packed

ROWS = 512
"""Of the inputs of a product: so many that weights are read from memory rarely."""

SHAPES = ((3072, 576), (576, 1536), (2048, 2048))
"""Outputs and inputs: two of the default model's, and one that fits no cache line worse than another."""

MEMORY_BYTES = 256 << 20
"""Several times any last-level cache that a few cores have to themselves."""

CACHE_BYTES = tuple(mib << 20 for mib in (8, 12, 16))
"""Above what the cores' own caches hold."""

TRIES = 7
PASSES = 20
"""Over a buffer that stays in the cache, within one timing."""


@dataclass(frozen=True, slots=True)
class Best:
    """A rate, and what reached it."""

    per_s: float
    by: str


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Rates are operations or bytes a second, a multiplication with its addition counted as two."""

    threads: int
    bf16: Best
    int8: Best | None
    read_one: Best
    read_all: Best
    cache_one: Best
    cache_all: Best

    @property
    def read(self) -> float:
        """The most bytes a second from memory, with one thread or all."""
        return max(self.read_one.per_s, self.read_all.per_s)


def measure(threads: int) -> Ceilings:
    """Measure all of them, in a few seconds; leaves torch with ``threads`` threads."""
    torch.set_num_threads(1)
    read_one, cache_one = read_rate(), cache_rate()
    torch.set_num_threads(threads)
    return Ceilings(threads, bf16_rate(), int8_rate(), read_one, read_rate(), cache_one, cache_rate())


def bf16_rate() -> Best:
    """The best of torch, oneDNN with packed weights, and what the engine uses."""
    found = []
    for outputs, inputs in SHAPES:
        x = torch.randn(ROWS, inputs).bfloat16()
        weight = torch.randn(outputs, inputs).bfloat16()
        work = 2.0 * ROWS * outputs * inputs
        found += [
            Best(work / least_s(lambda multiply=multiply, x=x: multiply(x)), f"{name} {ROWS}x{inputs}x{outputs}")  # type: ignore[misc]
            for name, multiply in _products(weight).items()
        ]
    return max(found, key=lambda best: best.per_s)


def _products(weight: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    found: dict[str, Callable[[Tensor], Tensor]] = {
        "torch": lambda x: functional.linear(x, weight),
        "the engine's": Linear(weight),
    }
    if can_pack("cpu", torch.bfloat16):
        blocks = torch.ops.mkldnn._reorder_linear_weight(weight)
        found["oneDNN, packed,"] = lambda x: multiply_packed(x, blocks, None)
    return found


def int8_rate() -> Best | None:
    """Torch's product of int8 matrices into int32, None where it has none."""
    if not hasattr(torch, "_int_mm"):
        return None
    found = []
    for outputs, inputs in SHAPES:
        x = torch.randint(-127, 128, (ROWS, inputs), dtype=torch.int8)
        weight = torch.randint(-127, 128, (inputs, outputs), dtype=torch.int8)
        seconds = least_s(lambda x=x, weight=weight: torch._int_mm(x, weight))  # type: ignore[misc]
        found.append(Best(2.0 * ROWS * outputs * inputs / seconds, f"torch {ROWS}x{inputs}x{outputs}"))
    return max(found, key=lambda best: best.per_s)


def read_rate() -> Best:
    """Bytes a second from memory: the best of torch's reductions over 256 MiB."""
    whole = torch.ones(MEMORY_BYTES // 4)
    found = [Best(MEMORY_BYTES / least_s(read), f"{name} of 256 MiB") for name, read in _reads(whole).items()]
    return max(found, key=lambda best: best.per_s)


def cache_rate() -> Best:
    """Bytes a second from the last-level cache: the same over a few MiB, again and again."""
    found = []
    for size in CACHE_BYTES:
        for name, read in _reads(torch.ones(size // 4)).items():
            seconds = least_s(lambda read=read: [read() for _ in range(PASSES)])  # type: ignore[misc]
            found.append(Best(PASSES * size / seconds, f"{name} of {size >> 20} MiB"))
    return max(found, key=lambda best: best.per_s)


def _reads(x: Tensor) -> dict[str, Callable[[], Tensor]]:
    """What reads a float32 tensor and little else; which is fastest depends on the CPU and the threads."""
    return {
        "sum": x.sum,
        "max": x.max,
        "dot product with itself": lambda: torch.dot(x, x),
        "norm": lambda: torch.linalg.vector_norm(x),
    }


def least_s(work: Callable[[], object]) -> float:
    """Return the shortest of several times: a ceiling is what the machine does undisturbed."""
    times = []
    for _ in range(TRIES):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
