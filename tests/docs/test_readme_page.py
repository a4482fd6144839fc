"""README's table of flags says what the settings say, and its runnable blocks are such that a test can run them."""

from __future__ import annotations

import re
import runpy
from typing import Any

from gateway.settings import GatewaySettings
from kvferry.stack import UpSettings
from runtime.settings import described, flag_of
from runtime.worker_settings import WorkerSettings
from tests.docs.blocks import README, ROOT, SHELLS, fenced
from tests.docs.test_commands import flags_of

PAGE = README.read_text(encoding="utf-8")
FEW = range(10, 16)


def rows() -> dict[str, tuple[str, str]]:
    """By flag: its metavar and default in README's table."""
    found = re.findall(r"^\| `(--[\w-]+) (\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE)
    return {flag: (metavar, default) for flag, metavar, default in found}


def settings_of_up() -> dict[str, tuple[str, str]]:
    """By flag: the same from the settings that `up` reads, its own first."""
    default = runpy.run_path(str(ROOT / "scripts" / "write_flags.py"))["_default"]
    found: dict[str, tuple[str, str]] = {}
    classes: tuple[type[Any], ...] = (UpSettings, GatewaySettings, WorkerSettings)
    for field, about in (each for settings in classes for each in described(settings)):
        found.setdefault(flag_of(field.name), (about.metavar, default(field)))
    return found


def test_the_table_of_flags_has_their_values_and_defaults() -> None:
    ours = settings_of_up()
    assert rows() == {flag: ours[flag] for flag in rows()}
    assert set(rows()) <= flags_of("up")
    assert len(rows()) in FEW


def test_what_is_in_the_background_is_runnable_too() -> None:
    blocks = fenced(PAGE)
    assert all(block.words <= {"runnable", "background"} for block in blocks)
    assert all("runnable" in block.words for block in blocks if "background" in block.words)
    assert all(block.language in SHELLS | {"python"} for block in blocks if block.words)
    assert next(block.title for block in blocks if "background" in block.words) == "make run"


def test_no_command_stands_outside_a_fence() -> None:
    assert (
        re.findall(r"^    \S.*$", re.sub(r"^```.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL), re.MULTILINE) == []
    )
