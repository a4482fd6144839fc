"""Host memory that a card reads and writes by itself, while others compute."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

log = logging.getLogger("engine")

NOT_PINNED = "pool_not_pinned bytes=%d reason=%s hint=copies of blocks hold up steps; a smaller pool may help"


def pin(memory: Tensor, device: torch.device, max_bytes: int) -> Callable[[], None]:
    """Pin ``memory``, all of which becomes resident; returns what undoes it, to be called once no copy is under way.

    Where it is more than ``max_bytes``, or the system refuses, copies still come right, but who begins one waits for
    it: that is logged. See https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__MEMORY.html (cudaHostRegister).
    """
    if memory.nbytes > max_bytes:
        log.warning(NOT_PINNED, memory.nbytes, f"this worker's part of the host's memory is {max_bytes} bytes")
        return lambda: None
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address = memory.data_ptr()
    failure = int(runtime.cudaHostRegister(address, memory.nbytes, 0))
    if not failure:
        return lambda: _unpin(runtime, address)
    log.warning(NOT_PINNED, memory.nbytes, f"CUDA error {failure}")
    with suppress(RuntimeError):  # CUDA tells a refusal to the next launch, too, which forgets it
        torch.zeros(1, device=device)
    return lambda: None


def _unpin(runtime: object, address: int) -> None:
    failure = int(runtime.cudaHostUnregister(address))  # type: ignore[attr-defined]
    if failure:
        log.warning("pool_not_unpinned error=%d", failure)
