"""How much memory the host gives, and how much of it KV blocks may take."""

from __future__ import annotations

from pathlib import Path

from engine.errors import ModelError

DEFAULT_KV_BYTES = 2 << 30
"""On a CPU memory has other users than us; this much holds 90,000 tokens of the default model."""

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


def kv_budget_bytes(
    weight_bytes: int,
    utilization: float,
    explicit: int | None,
    host_workers: int,
    device: str = "cpu",
) -> int:
    """Bytes for KV blocks of one worker; ModelError if the weights alone fill its share.

    ``explicit`` wins. On a CPU the share is ``utilization`` of the host's memory divided by its
    workers, and at most DEFAULT_KV_BYTES; on a GPU it is ``utilization`` of the device's memory.
    """
    if explicit is not None:
        return explicit
    on_cpu = device == "cpu"
    total = host_memory_bytes() // max(1, host_workers) if on_cpu else _gpu_memory_bytes(device)
    share = int(total * utilization)
    left = share - weight_bytes
    if left <= 0:
        raise ModelError(f"weights of {weight_bytes} bytes fill the worker's share of {share} bytes")
    return min(left, DEFAULT_KV_BYTES) if on_cpu else left


def _gpu_memory_bytes(device: str) -> int:
    import torch

    return int(torch.cuda.get_device_properties(device).total_memory)
