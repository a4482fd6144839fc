"""`kvferry scale` and `kvferry restart`: ask a running `up` to change its workers."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvferry.control import ask_control
from kvferry.errors import UsageError
from kvferry.flags import read_settings
from kvferry.stack import MAX_WORKERS
from kvferry.stack_file import find_stack
from kvferry.which_stack import StackSettings
from runtime import units
from runtime.settings import FILE_SUFFIX, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSettings(StackSettings):
    """Which stack, and how long to wait for it."""

    within: float = setting(
        units.seconds(1.0, 24 * 3600.0),
        600.0,
        "seconds to wait for the change; the stack goes on with it in any case",
        metavar="SECONDS",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleSettings(ChangeSettings):
    """How many workers there shall be."""

    prefill: int | None = setting(
        units.integer(1, MAX_WORKERS),
        None,
        "prefill workers; default: as many as there are. Raising it needs memory to spare: a worker takes its share "
        "at its start (see --kv-cache-memory-bytes and --max-workers of `up`)",
        metavar="N",
    )
    decode: int | None = setting(
        units.integer(1, MAX_WORKERS),
        None,
        "decode workers; default: as many as there are. Raising it needs memory to spare, as above",
        metavar="N",
    )


def run_scale(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Change the number of workers; return 0 when they are as many. Raises `StartError`."""
    about = "Change the number of workers of a running `kvferry up`; those that go finish their work first."
    settings = read_settings(ScaleSettings, "scale", about, argv, _without_sizes(environ))
    if settings.prefill is None and settings.decode is None:
        raise UsageError("say how many: --prefill N, --decode N or both")
    return _change(settings, {"command": "scale", "prefill": settings.prefill, "decode": settings.decode})


def run_restart(argv: Sequence[str]) -> int:
    """Replace every worker, one at a time; return 0 when that is done. Raises `StartError`."""
    about = (
        "Replace every worker of a running `kvferry up`, one at a time. Each successor is ready before its "
        "predecessor leaves, so that memory for one more worker is needed."
    )
    return _change(read_settings(ChangeSettings, "restart", about, argv), {"command": "restart"})


def _change(settings: ChangeSettings, question: Mapping[str, Any]) -> int:
    answer = ask_control(find_stack(settings.stack).control, question, settings.within)
    workers = ", ".join(map(str, answer["workers"]))
    sys.stdout.write(f"{answer['prefill']} prefill, {answer['decode']} decode: {workers}\n")
    return 0


def _without_sizes(environ: Mapping[str, str]) -> dict[str, str]:
    """KVFERRY_PREFILL and KVFERRY_DECODE are for `up`: what it began with is no wish for now."""
    sizes = {f"KVFERRY_{role}{suffix}" for role in ("PREFILL", "DECODE") for suffix in ("", FILE_SUFFIX)}
    return {name: value for name, value in environ.items() if name not in sizes}
