"""How much memory the host gives, and how much of it KV blocks may take."""

from __future__ import annotations

import math
from pathlib import Path

from engine.errors import ModelError

DEFAULT_KV_BYTES = 2 << 30
"""On a CPU memory has other users than us; this much holds 90,000 tokens of the default model."""

PINNED_SHARE = 0.8
"""Of a worker's part of the host's memory; pinned memory can't be taken back, and processes and files need some."""

CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def host_memory_bytes(root: Path = Path("/")) -> int:
    """Return the smaller of the machine's memory and this container's limit (cgroup version 2 or 1)."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    total = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:"))
    for name in CGROUP_LIMITS:
        path = root / name.lstrip("/")
        if path.is_file() and (text := path.read_text().strip()).isdecimal():
            total = min(total, int(text))
    return total


def memory_of(device: str) -> int:
    """Bytes of the memory that weights and pool come out of: the host's for "cpu", else the device's."""
    return host_memory_bytes() if device == "cpu" else _gpu_memory_bytes(device)


def part_of_worker(memory_bytes: int, host_workers: int, device: str) -> int:
    """Bytes of a host's memory for one of its workers; a GPU is one worker's own."""
    return memory_bytes // max(1, host_workers) if device == "cpu" else memory_bytes


def pinnable_bytes(host_workers: int) -> int:
    """Bytes of the host's memory that one of its workers may pin for a GPU."""
    return int(part_of_worker(host_memory_bytes(), host_workers, "cpu") * PINNED_SHARE)


def kv_budget_bytes(
    weight_bytes: int,
    utilization: float,
    explicit: int | None,
    host_workers: int,
    device: str = "cpu",
    memory_bytes: int | None = None,
) -> int:
    """Bytes for KV blocks of one worker; ModelError if the weights alone fill its share.

    ``explicit`` wins. On a CPU the share is ``utilization`` of the host's memory divided by its
    workers, and at most DEFAULT_KV_BYTES; on a GPU it is ``utilization`` of the device's memory.
    ``memory_bytes`` stands for what the machine has.
    """
    if explicit is not None:
        return explicit
    on_cpu = device == "cpu"
    memory_bytes = memory_of(device) if memory_bytes is None else memory_bytes
    part = part_of_worker(memory_bytes, host_workers, device)
    left = int(part * utilization) - weight_bytes
    if left <= 0:
        raise ModelError(_no_room(weight_bytes, utilization, part, host_workers if on_cpu else 1))
    return min(left, DEFAULT_KV_BYTES) if on_cpu else left


def size_text(num_bytes: int) -> str:
    """A size for people, in binary units: "22.5 KiB", "310.8 MiB"."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.1f} {unit}" if unit != "B" else f"{num_bytes} B"
        size /= 1024
    return f"{size:.1f} GiB" if size < 1024 else f"{size / 1024:.2f} TiB"


def _no_room(weight_bytes: int, utilization: float, part: int, num_sharers: int) -> str:
    """What is missing, and which setting helps."""
    share = int(part * utilization)
    of_whom = f"its {1 / num_sharers:.0%} of the host's memory" if num_sharers > 1 else "the memory"
    text = (
        f"weights of {size_text(weight_bytes)} fill the worker's share of {size_text(share)} "
        f"({utilization:g} of {of_whom}, {size_text(part)}), {size_text(weight_bytes - share)} are missing"
    )
    least = math.floor(weight_bytes / max(1, part) * 100 + 1) / 100
    if least <= 1:
        return f"{text}: raise --gpu-memory-utilization to {least:g} or more"
    fitting = int(part * num_sharers * utilization / (weight_bytes + 1))
    if 1 <= fitting < num_sharers:
        return f"{text}: run at most {fitting} of the host's {num_sharers} workers (--role both, --prefill, --decode)"
    needed = int(weight_bytes / utilization) * num_sharers
    return f"{text}: more than {size_text(needed)} of memory are needed"


def _gpu_memory_bytes(device: str) -> int:
    import torch

    return int(torch.cuda.get_device_properties(device).total_memory)
