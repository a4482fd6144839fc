"""Copies beside compute: work that a device does in an order of its own, after what was computed before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch


class Copy(Protocol):
    """Work that was given to a stream."""

    def is_done(self) -> bool:
        """Whether its bytes have arrived. Waits for nothing."""

    def finish(self) -> None:
        """Wait until they have."""

    def come_first(self) -> None:
        """What is computed from now on comes after it. Waits for nothing."""


class CopyStream(Protocol):
    """Does one piece of work after the other."""

    def run(self, work: Callable[[], None]) -> Copy:
        """Begin ``work`` after all that is computed so far and all that was given before; what follows goes on."""


class CudaStream:
    """A card's: ``work`` launches what it does, and is done when the card is."""

    def __init__(self, device: torch.device) -> None:
        """On one card."""
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def run(self, work: Callable[[], None]) -> Copy:
        """As ``CopyStream`` promises."""
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            work()
            event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        return _CudaCopy(event, self._stream.device)


class _CudaCopy:
    def __init__(self, event: torch.cuda.Event, device: torch.device) -> None:
        self._event = event
        self._device = device

    def is_done(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def finish(self) -> None:
        self._event.synchronize()

    def come_first(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._event)


class LateStream:
    """The twin for devices without streams: ``work`` is done when it is asked for often enough, or waited for."""

    def __init__(self, num_asks: int = 0) -> None:
        """``num_asks``: how often it is said of each that it isn't done yet."""
        self._num_asks = num_asks
        self._waiting: deque[_LateCopy] = deque()

    def run(self, work: Callable[[], None]) -> Copy:
        """As ``CopyStream`` promises."""
        copy = _LateCopy(self, work, self._num_asks)
        self._waiting.append(copy)
        return copy

    def work_until(self, last: _LateCopy) -> None:
        """Do what was given up to the ``last``, in order."""
        while not last.is_worked:
            self._waiting.popleft().do()


class _LateCopy:
    def __init__(self, stream: LateStream, work: Callable[[], None], num_asks: int) -> None:
        self._stream = stream
        self._work = work
        self._num_asks = num_asks
        self.is_worked = False

    def do(self) -> None:
        self._work()
        self.is_worked = True

    def is_done(self) -> bool:
        if not self._num_asks:
            self._stream.work_until(self)
        self._num_asks = max(self._num_asks - 1, 0)
        return self.is_worked

    def finish(self) -> None:
        self._stream.work_until(self)

    def come_first(self) -> None:
        self._stream.work_until(self)
