"""Which running stack a command is for."""

from dataclasses import dataclass
from typing import Any

from runtime import units
from runtime.settings import setting


def stack_setting() -> Any:
    """Return the flag that commands for a running stack share."""
    return setting(
        units.text,
        "",
        "port, process id or name of the `kvferry up` that is meant, when several run",
        metavar="NAME|PORT",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSettings:
    """Which stack."""

    stack: str = stack_setting()
