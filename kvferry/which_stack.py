"""Which running stack a command is for."""

from dataclasses import dataclass

from runtime import units
from runtime.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSettings:
    """The flag that commands for a running stack share."""

    stack: str = setting(
        units.text,
        "",
        "port, process id or name of the `kvferry up` that is meant, when several run",
        metavar="NAME|PORT",
    )
