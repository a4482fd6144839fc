"""What `plan` is asked: a model, a memory, and the flags of `up` that decide what fits."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvferry.flags import new_parser, parse, read_checked
from kvferry.stack import BOTH, UpSettings, num_planned, refuse_with_both
from runtime import units
from runtime.service_settings import MAX_MODEL_LEN
from runtime.settings import add_flags, described, parse_bool, setting
from runtime.worker_settings import WorkerSettings

OF_UP = frozenset({"role", "prefill", "decode", "max_workers"})
OF_WORKERS = frozenset(
    {
        "model",
        "max_model_len",
        "auto_concurrency",
        "max_num_seqs",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "dtype",
        "quantization",
        "device",
    }
)
"""Flags that `plan` shares: those that change what fits."""

CUDA_DEVICE = Path("/dev/nvidiactl")
"""There where a GPU's driver is: as much as can be known without loading torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """What only `plan` is told."""

    memory: int | None = setting(
        units.num_bytes,
        None,
        "memory to plan for: the host's, or with --device cuda that of each GPU; default: this machine's. "
        "Raising it makes room for more",
        metavar="SIZE",
    )
    host_workers: int | None = setting(
        units.integer(1, 4096),
        None,
        "workers that share the host's memory; default: as many as `up` would start. Raising it makes each one's "
        "pool smaller",
        metavar="N",
    )
    prompt_len: tuple[int, ...] = setting(
        units.integers(1, MAX_MODEL_LEN),
        (),
        "prompt whose hand-over is to be computed, in tokens; may be repeated; default: 512 and 2048",
        metavar="TOKENS",
        repeat=True,
    )
    json: bool = setting(parse_bool, False, "print JSON instead of tables")


@dataclass(frozen=True, slots=True)
class Question:
    """All that decides the answer. ``device`` is "cpu" or "cuda"."""

    own: PlanSettings
    worker: WorkerSettings
    num_prefill: int
    num_decode: int
    device: str


def read_question(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Question:
    """Return what is asked by flags and environment. Raises `UsageError`."""
    parser = new_parser("plan", "Say what fits into a memory, before anything is loaded. Flags are those of `up`.")
    add_flags(parser, PlanSettings, title="plan")
    add_flags(parser, UpSettings, skip=_others(UpSettings, OF_UP), title="stack")
    add_flags(parser, WorkerSettings, skip=_others(WorkerSettings, OF_WORKERS), title="each worker")
    flags = parse(parser, argv)
    own = read_checked(PlanSettings, flags, environ)
    up = read_checked(UpSettings, flags, environ, skip=_others(UpSettings, OF_UP))
    worker = read_checked(WorkerSettings, flags, environ, skip=_others(WorkerSettings, OF_WORKERS))
    if up.role == BOTH:
        refuse_with_both(up, worker)
    worker = replace(worker, host_workers=own.host_workers or num_planned(up))
    return Question(own, worker, 0 if up.role == BOTH else up.prefill, up.decode, _device(worker.device))


def _others(settings: type[Any], shared: frozenset[str]) -> frozenset[str]:
    return frozenset(field.name for field, _ in described(settings)) - shared


def _device(asked: str) -> str:
    if asked == "auto":
        return "cuda" if CUDA_DEVICE.exists() else "cpu"
    return asked
