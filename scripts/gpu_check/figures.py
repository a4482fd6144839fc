"""Figures of something that took some time."""

from __future__ import annotations

from gpu_check.bench import Bench
from gpu_check.check import Found


def time(ms: float) -> str:
    """Milliseconds, or microseconds where they are few."""
    return f"{ms:.3g} ms" if ms >= 1 else f"{ms * 1e3:.3g} us"


def bandwidth(bench: Bench, num_bytes: int, ms: float) -> Found:
    """Bytes that had to be moved, as a share of what a copy moves."""
    per_s = num_bytes / ms * 1e3
    return Found(f"{time(ms)}, {per_s / 1e9:,.0f} GB/s", per_s / bench.rates.copy, "%", "of copy")


def throughput(num_operations: int, ms: float, rate: float, of: str) -> Found:
    """Operations, as a share of a measured rate."""
    per_s = num_operations / ms * 1e3
    return Found(f"{time(ms)}, {per_s / 1e12:,.3g} TFLOP/s", per_s / rate, "%", f"of {of}")
