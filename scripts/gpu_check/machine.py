"""What machine it is."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import torch
import triton

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 20.0


def facts(device: torch.device | None) -> list[tuple[str, str]]:
    """Names and values: card, versions, commit. ``device``: None where there is no card."""
    return [
        ("card", card(device)),
        ("driver", _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")),
        ("torch", f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}"),
        ("triton", triton.__version__),
        ("python", platform.python_version()),
        ("commit", _said("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12")),
    ]


def card(device: torch.device | None) -> str:
    """Name, compute capability and memory of a card, and how many there are."""
    if device is None:
        return "none that torch can use, or one before sm_80"
    if device.type != "cuda":
        return "none: Triton's interpreter"
    found = torch.cuda.get_device_properties(device)
    count = torch.cuda.device_count()
    memory = f"{found.total_memory / (1 << 30):.0f} GiB, {found.multi_processor_count} multiprocessors"
    return f"{count} x {found.name}, sm_{found.major}{found.minor}, {memory}"


def _said(*command: str) -> str:
    """The first line that a program prints, or that it isn't known."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip().partition("\n")[0] or "unknown"
