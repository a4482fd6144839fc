"""The card's own rates, as lines of the table."""

from __future__ import annotations

from gpu_check.bench import Bench
from gpu_check.check import Check, Found, NotRun


def checks() -> list[Check]:
    """Those that others are measured by."""
    return [
        Check("copy within the card, bytes read and written", copies),
        Check("read within the card", reads),
        Check("matmul, bf16, 8,192 x 8,192 x 8,192", multiplies),
        Check("matmul, fp8, 8,192 x 8,192 x 8,192", multiplies_fp8),
    ]


def copies(bench: Bench) -> Found:
    """Bytes a second."""
    return Found(f"{bench.rates.copy / 1e9:,.0f} GB/s")


def reads(bench: Bench) -> Found:
    """Bytes a second."""
    return Found(f"{bench.rates.read / 1e9:,.0f} GB/s")


def multiplies(bench: Bench) -> Found:
    """FLOP a second."""
    return Found(f"{bench.rates.bf16 / 1e12:,.3g} TFLOP/s")


def multiplies_fp8(bench: Bench) -> Found:
    """FLOP a second."""
    if not bench.rates.has_fp8:
        raise NotRun("a card before sm_89, whose fp8 products are computed in fp16")
    return Found(f"{bench.rates.fp8 / 1e12:,.3g} TFLOP/s")
