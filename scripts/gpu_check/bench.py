"""Where checks run, and what they measure with."""

from __future__ import annotations

import torch

from gpu_check.rates import Rates
from gpu_check.timer import Timer


class Bench:
    """A device with its timer and its measured rates.

    ``is_tiny``: everything is as small as it can be, on a card or in Triton's interpreter; times then mean nothing, and
    bounds on them aren't judged.
    """

    def __init__(self, device: torch.device, *, is_tiny: bool = False) -> None:
        """``device``: "cuda", or "cpu" for the interpreter."""
        self.device = device
        self.is_tiny = is_tiny
        self.timer = Timer(device)
        self.rates = Rates(device, self.timer, is_tiny=is_tiny)

    @property
    def is_card(self) -> bool:
        """Whether it is a card, not the interpreter."""
        return self.device.type == "cuda"

    def size(self, full: int, tiny: int) -> int:
        """One of both."""
        return tiny if self.is_tiny else full

    def random(
        self, *shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0, seed: int = 0
    ) -> torch.Tensor:
        """Normally distributed numbers on the device, the same ones for a shape and a seed."""
        generator = torch.Generator(self.device).manual_seed(sum(shape) + 1000 * seed)
        return (torch.randn(*shape, generator=generator, device=self.device) * scale).to(dtype)

    def free_bytes(self) -> int:
        """Bytes of the card's memory that may still be taken."""
        if not self.is_card:
            return 1 << 62
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(self.device)[0])
