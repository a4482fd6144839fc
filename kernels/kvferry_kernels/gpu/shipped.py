"""A configuration of a kernel that we ship: what is compiled ahead of time, for cards that needn't be there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ARCHITECTURES = (80, 90, 100)
"""Cards that we compile for, compute capability times 10: A100, H100 and H200, B200."""


FUSED, EXACT = {"enable_fp_fusion": True}, {"enable_fp_fusion": False}
"""Whether a product and the sum behind it may be rounded once, as one instruction does. Every launch says it: what
Triton does unasked changes with its version, and where it will change it warns."""


@dataclass(frozen=True, slots=True)
class Shipped:
    """One kernel with everything that fixes its machine code but for the card.

    ``kernel``: what ``triton.jit`` returns. ``signature``: Triton's type of each argument that is passed at run time
    ("*bf16", "i32", "fp32"), in any order; pointers are taken to be aligned to 16 bytes, as torch's are, and
    "i32:16" is a multiple of 16.
    ``constants``: the value of each ``tl.constexpr`` argument. ``architectures``: cards it is meant for.
    ``is_fused``: it is launched with FUSED, else with EXACT.
    """

    name: str
    kernel: object
    signature: Mapping[str, str]
    constants: Mapping[str, object]
    num_warps: int
    num_stages: int
    architectures: tuple[int, ...] = ARCHITECTURES
    is_fused: bool = True
