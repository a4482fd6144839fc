"""What a scripted worker looks like, says and does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from protocol.messages import Message, WorkerStatus


def token(choice: int, index: int) -> int:
    """What every worker makes at this place: the same after any move."""
    return 1000 * (choice + 1) + index


def status(role: str, **changes: object) -> WorkerStatus:
    """A ready, idle worker."""
    idle = WorkerStatus(
        role=role,
        state="ready",
        model="toy",
        max_model_len=4096,
        weights="w",
        layout="l",
        fingerprint="f",
        numerics="n",
        kv_dtype="float32",
        status_url="",
        progress=0,
        busy=False,
        num_running=0,
        num_waiting=0,
        max_num_seqs=16,
        waiting_tokens=0,
        total_blocks=1000,
        free_blocks=1000,
        reserved_blocks=0,
        local_prefill_tokens=0,
    )
    return replace(idle, **changes)  # type: ignore[arg-type]


@dataclass
class Habits:
    """What a test makes a worker do. ``token_s`` is the time of a decode step, ``says`` gives its tokens."""

    refuse: str = ""
    stall_prefill: bool = False
    stall_handover: bool = False
    stall_decode_at: int = 1 << 30
    end_at: dict[int, int] = field(default_factory=dict)
    token_s: float = 0.0
    deaf_to: tuple[type[Message], ...] = ()
    release: bool = True
    beats: bool = True
    max_held: int = 1 << 30
    says: Callable[[int, int], int] = token
