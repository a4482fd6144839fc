"""What kernels need to know of the card that they run on."""

from __future__ import annotations

import torch

TWIN = (9, 0)
"""The compute capability whose configurations run under Triton's interpreter, on the CPU: that of H100 and H200."""

CONVERTS_FP8 = (8, 9)
"""The first compute capability that converts e4m3 by itself."""

LARGE_PRODUCTS = (9, 0)
"""The first whose tensor cores take a tile of keys from shared memory, past the registers."""


def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of a device."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else TWIN
