"""Process groups of two: rank 0 sends, rank 1 receives. By gloo between CPUs, by NCCL between GPUs.

All calls block and are made from one thread. What fails raises ``GroupError``, and the group is of no use then.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

SENDER, RECEIVER = 0, 1
OP_S = 5.0
"""Longest that one frame may take: a receiver that is stopped for longer has lost its group."""
MAX_REASON_CHARS = 200
TAG = 0
"""Frames come in the order in which they were sent."""

NCCL_WAITS = {
    "TORCH_NCCL_BLOCKING_WAIT": "1",
    "TORCH_NCCL_USE_COMM_NONBLOCKING": "1",
    "TORCH_NCCL_NONBLOCKING_TIMEOUT": str(int(OP_S)),
}
"""Who waits for NCCL waits for a bounded time and is told of an error. Else a thread of torch's ends the process."""


class GroupError(Exception):
    """The other rank didn't join, is gone, or is too slow."""


class PairGroup(Protocol):
    """One end of a group."""

    def send(self, frame: bytearray, num_bytes: int) -> None:
        """The first ``num_bytes`` of ``frame`` to the other rank. Returns when it may change. Raises ``GroupError``."""

    def receive(self, into: bytearray, num_bytes: int) -> None:
        """The other rank's next frame, of ``num_bytes`` bytes, to the start of ``into``. Raises ``GroupError``."""


MakeGroup = Callable[[c10d.Store, int], PairGroup]
"""``make(store, rank)`` returns when both ranks are there. Raises ``GroupError``."""


class Gloo:
    """Makes groups between CPUs. They share one device: a listening address, and a thread for all connections."""

    def __init__(self, host: str) -> None:
        """``host``: a name or address of this machine at which other ranks reach it. Looked up with the first group."""
        self._host = host
        self._lock = threading.Lock()
        self._device: Any = None

    def __call__(self, store: c10d.Store, rank: int) -> GlooGroup:
        """See ``MakeGroup``."""
        with self._lock, _errors_of_torch():
            if self._device is None:
                self._device = c10d.ProcessGroupGloo.create_device(hostname=self._host)
        return GlooGroup(self._device, store, rank)


class GlooGroup:
    """Between CPUs, over TCP."""

    def __init__(self, device: Any, store: c10d.Store, rank: int) -> None:
        """``device`` is one of gloo's."""
        self._other = 1 - rank
        self._store = store
        options: Any = c10d.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # its stub lacks it
        options._timeout = timedelta(seconds=OP_S)
        options._threads = 1
        options._devices = [device]
        with _errors_of_torch():
            self._group: Any = c10d.ProcessGroupGloo(store, rank, 2, options)

    def send(self, frame: bytearray, num_bytes: int) -> None:
        """See ``PairGroup``."""
        if num_bytes:
            with _errors_of_torch():
                self._group.send([_bytes_of(frame, num_bytes)], self._other, TAG).wait(timedelta(seconds=OP_S))

    def receive(self, into: bytearray, num_bytes: int) -> None:
        """See ``PairGroup``."""
        if num_bytes:
            with _errors_of_torch():
                self._group.recv([_bytes_of(into, num_bytes)], self._other, TAG).wait(timedelta(seconds=OP_S))


class NcclGroup:
    """Between GPUs: NVLink, PCIe or a network, as NCCL finds. Frames are copied through pinned memory at both ends.

    Copies and NCCL's kernels run on a stream of their own, beside what else the device computes.
    """

    def __init__(self, max_frame_bytes: int, store: c10d.Store, rank: int) -> None:
        """On this process's GPU, which mustn't be the other's."""
        self._other = 1 - rank
        self._store = store
        for name, value in NCCL_WAITS.items():
            os.environ.setdefault(name, value)
        options = c10d.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=OP_S)
        with _errors_of_torch():
            device = torch.device("cuda", 0)
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._there = torch.empty(max_frame_bytes, dtype=torch.uint8, device=device)
            self._here = torch.empty(max_frame_bytes, dtype=torch.uint8, pin_memory=True)
            self._group: Any = c10d.ProcessGroupNCCL(store, rank, 2, options)

    def send(self, frame: bytearray, num_bytes: int) -> None:
        """See ``PairGroup``."""
        if not num_bytes:
            return
        here, there = self._here[:num_bytes], self._there[:num_bytes]
        with _errors_of_torch(), torch.cuda.stream(self._stream):
            here.copy_(_bytes_of(frame, num_bytes))
            there.copy_(here, non_blocking=True)
            self._group.send([there], self._other, TAG).wait(timedelta(seconds=OP_S))
            self._stream.synchronize()

    def receive(self, into: bytearray, num_bytes: int) -> None:
        """See ``PairGroup``."""
        if not num_bytes:
            return
        here, there = self._here[:num_bytes], self._there[:num_bytes]
        with _errors_of_torch(), torch.cuda.stream(self._stream):
            self._group.recv([there], self._other, TAG).wait(timedelta(seconds=OP_S))
            here.copy_(there, non_blocking=True)
            self._stream.synchronize()
            _bytes_of(into, num_bytes).copy_(here)


def gpu_name() -> str:
    """This process's GPU, by a name that no other in the world has. Raises ``GroupError`` if there is none of use."""
    if not (torch.cuda.is_available() and torch.distributed.is_nccl_available()):
        raise GroupError("torch finds none here")
    with _errors_of_torch():
        return str(torch.cuda.get_device_properties(0).uuid)


@contextmanager
def _errors_of_torch() -> Iterator[None]:
    """Torch raises RuntimeError for whatever fails in a group."""
    try:
        yield
    except RuntimeError as error:
        raise GroupError(str(error).partition("\n")[0][:MAX_REASON_CHARS]) from error


def _bytes_of(data: bytearray, num_bytes: int) -> Tensor:
    return torch.frombuffer(data, dtype=torch.uint8, count=num_bytes)
