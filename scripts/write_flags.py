"""Write docs/flags.md from the settings themselves: `python scripts/write_flags.py`. A test keeps the two equal."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.settings import GatewaySettings
from kvferry import stack
from kvferry.cancel import CancelSettings
from kvferry.change import ChangeSettings, ScaleSettings
from kvferry.fetch import FetchSettings
from kvferry.ledger import LedgerSettings
from kvferry.not_built import NOT_BUILT
from kvferry.plan.settings import OF_UP, OF_WORKERS, PlanSettings
from kvferry.secrets import SecretsSettings
from runtime.service_settings import ServiceSettings
from runtime.settings import Setting, described, flag_of, parse_bool, variable_of
from runtime.worker_settings import WorkerSettings

PAGE = Path(__file__).parents[1] / "docs" / "flags.md"
Field = dataclasses.Field[Any]

INTRO = """# Flags

This page is written by `scripts/write_flags.py` from the settings. `kvferry COMMAND --help` says the same.

A flag goes before its environment variable, and that before the default. `_` may stand for `-` in a flag's name.
Each variable may also be given as a file: `KVFERRY_NATS_URL_FILE=/secrets/nats-url` names a file whose one line is the
value of `KVFERRY_NATS_URL`. Where variable and file are both given, the variable counts.
Numbers take `k` and `m` (1,000s) or `K` and `M` (1,024s); sizes also `2GiB` or `24GB`; durations `500ms`, `30s`, `2m`
or plain seconds. A value that can't be ends the command with one line and exit code 2. Flags marked *secret* are
passed on by `kvferry up` in the environment, never on a command line.
"""

SECTIONS: tuple[tuple[str, str, type[Any], Callable[[str], bool]], ...] = (
    (
        "Of every service",
        "`up` passes them on to each process that it starts.",
        ServiceSettings,
        lambda name: True,
    ),
    (
        "Of `up` alone",
        "How many workers of which kind, and whether it starts the brokers.",
        stack.UpSettings,
        lambda name: True,
    ),
    (
        "Of the gateway",
        "`up` takes them too, and passes them to its gateways.",
        GatewaySettings,
        lambda name: name not in _names(ServiceSettings),
    ),
    (
        "Of the workers",
        "The same for `prefill` and `decode`; `up` passes them to each of its workers.",
        WorkerSettings,
        lambda name: name not in _names(ServiceSettings),
    ),
)

VISITORS: tuple[tuple[str, type[Any]], ...] = (
    ("ledger", LedgerSettings),
    ("cancel", CancelSettings),
    ("scale", ScaleSettings),
    ("restart", ChangeSettings),
    ("fetch", FetchSettings),
    ("secrets", SecretsSettings),
    ("plan", PlanSettings),
)
"""Commands that are no services."""

HEAD = ["| flag | variable | default | of | what it is, and what raising it costs |", "|---|---|---|---|---|"]


def render() -> str:
    """The whole page."""
    parts = [INTRO]
    for title, about, settings, belongs in SECTIONS:
        rows = [
            _row(field, setting, _commands(settings, field.name))
            for field, setting in described(settings)
            if belongs(field.name)
        ]
        parts.append("\n".join([f"## {title}", "", about, "", *HEAD, *rows, ""]))
    return "\n".join([*parts, _visitors(), _not_built()])


def _names(settings: type[Any]) -> frozenset[str]:
    return frozenset(field.name for field, _ in described(settings))


def _row(field: Field, setting: Setting, commands: str) -> str:
    flag = flag_of(field.name)
    shown = f"`{flag}`, `--no-{flag[2:]}`" if setting.parse is parse_bool else f"`{flag} {setting.metavar}`"
    text = setting.help + (" *(secret)*" if setting.secret else "")
    cells = (shown, f"`{variable_of(field.name)}`", _default(field), commands, text)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(field: Field) -> str:
    value = field.default
    if value in (None, "", ()):
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _commands(settings: type[Any], name: str) -> str:
    """The commands that take this flag with this meaning."""
    if settings is stack.UpSettings:
        return "up, plan" if name in OF_UP else "up"
    own = ["gateway"] if name in _names(GatewaySettings) and settings is not WorkerSettings else []
    own += ["prefill", "decode"] if name in _names(WorkerSettings) and settings is not GatewaySettings else []
    given = stack._OWN_OF_UP | (stack._GIVEN_TO_WORKERS if settings is WorkerSettings else stack._GIVEN_TO_GATEWAY)
    planned = ["plan"] if name in OF_WORKERS and settings is not GatewaySettings else []
    return ", ".join([*([] if name in given else ["up"]), *own, *planned])


def _visitors() -> str:
    """Flags of commands that are no services; equal ones share a row."""
    found: dict[tuple[str, str], tuple[Field, Setting, list[str]]] = {}
    for command, settings in VISITORS:
        for field, setting in described(settings):
            found.setdefault((field.name, setting.help), (field, setting, []))[2].append(command)
    about = "`KVFERRY_PREFILL` and `KVFERRY_DECODE` are for `up`; `scale` doesn't read them."
    rows = [_row(field, setting, ", ".join(commands)) for field, setting, commands in found.values()]
    return "\n".join(["## Of the other commands", "", about, "", *HEAD, *rows, ""])


def _not_built() -> str:
    lines = [
        "## Not built",
        "",
        "Flags that users of vLLM know and that are refused in one line, never ignored:",
        "",
    ]
    known = {flag_of(name) for _, _, settings, _ in SECTIONS for name in _names(settings)}
    for feature, flags in NOT_BUILT.items():
        missing = [f"`{flag}`" for flag in flags if flag not in known]
        lines += [f"- {feature}: {', '.join(missing)}"] if missing else []
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")
