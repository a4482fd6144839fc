"""What the card itself can do: others are measured by it."""

from __future__ import annotations

from functools import cached_property

import torch

from gpu_check.timer import Timer

COPIED_BYTES, TINY_BYTES = 2 << 30, 1 << 16
SIDE, TINY_SIDE = 8192, 32
"""Of the matrices whose product is timed."""

HAS_FP8 = (8, 9)
"""The first compute capability that multiplies float8."""


class Rates:
    """Bytes and operations a second, each measured when it is first asked for."""

    def __init__(self, device: torch.device, timer: Timer, *, is_tiny: bool) -> None:
        """``is_tiny``: of little memory and small products."""
        self._device, self._timer = device, timer
        self._bytes = TINY_BYTES if is_tiny else COPIED_BYTES
        self._side = TINY_SIDE if is_tiny else SIDE

    @property
    def has_fp8(self) -> bool:
        """Whether the card multiplies float8."""
        return self._device.type == "cuda" and torch.cuda.get_device_capability(self._device) >= HAS_FP8

    @cached_property
    def copy(self) -> float:
        """Bytes a second, read and written, of a copy within the card."""
        source = torch.zeros(self._bytes, dtype=torch.uint8, device=self._device)
        goal = torch.empty_like(source)
        return 2 * self._bytes / self._timer.ms(lambda: goal.copy_(source)) * 1e3

    @cached_property
    def read(self) -> float:
        """Bytes a second that are read where nothing is written, by torch's sum; that of a copy where it is faster."""
        numbers = torch.zeros(self._bytes // 4, device=self._device)
        return max(self.copy, numbers.nbytes / self._timer.ms(numbers.sum) * 1e3)

    @cached_property
    def bf16(self) -> float:
        """FLOP a second of a large bfloat16 product."""
        a, b = (torch.randn(self._side, self._side, device=self._device).bfloat16() for _ in range(2))
        out = torch.empty_like(a)
        return 2 * self._side**3 / self._timer.ms(lambda: torch.matmul(a, b, out=out)) * 1e3

    @cached_property
    def fp8(self) -> float:
        """FLOP a second of a large float8 product; that of bfloat16 where the card multiplies no float8."""
        if not self.has_fp8:
            return self.bf16
        a, b = (torch.randn(self._side, self._side, device=self._device).to(torch.float8_e4m3fn) for _ in range(2))
        one = torch.ones((), device=self._device)

        def multiply() -> torch.Tensor:
            return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

        return 2 * self._side**3 / self._timer.ms(multiply) * 1e3
