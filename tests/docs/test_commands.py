"""Pages name only commands, flags, targets, services and scripts that there are."""

from __future__ import annotations

import contextlib
import io
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from kvferry.cli import _COMMANDS, _HIDDEN, main
from tests.docs.blocks import ROOT, Command, commands

PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "kernels" / "README.md",
    ]
)
PLACEHOLDER = re.compile(r"[A-Z]+|\.\.\.|…")
"""`COMMAND`, or words left out."""


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def of(page: Path, program: str) -> list[Command]:
    found = commands(page.read_text(encoding="utf-8"), frozenset({program}))
    return [command for command in found if len(command.words) > 1]


@cache
def help_of(*command: str) -> str:
    """What `--help` of a sub-command prints; "" if there is no such command."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main([*command, "--help"])
        except SystemExit as ended:  # argparse ends the process after its help
            code = int(ended.code or 0)
    return said.getvalue() if code == 0 else ""


@cache
def flags_of(*command: str) -> frozenset[str]:
    """Flags that a sub-command takes: those at the beginning of a line of its help."""
    heads = re.findall(r"^ {2}(-\S.*?)(?:  |$)", help_of(*command), re.MULTILINE)
    return frozenset(flag for head in heads for flag in re.findall(r"(?<!\S)--?[a-z][\w-]*", head))


def sub_command(command: Command) -> tuple[str, ...]:
    """What `--help` is asked of: `key` has actions, each with flags of its own."""
    return command.words[1:3] if command.words[1] == "key" else command.words[1:2]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_of_kvferry_and_their_flags_exist(page: Path) -> None:
    wrong = []
    for command in of(page, "kvferry"):
        name = command.words[1]
        if name.startswith("-") or PLACEHOLDER.fullmatch(name):
            continue
        strange = set(command.flags) - flags_of(*sub_command(command))
        if strange or name not in set(_COMMANDS) - _HIDDEN:
            wrong.append(f"{command}: {', '.join(sorted(strange)) or 'no such command'}")
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_targets_of_make_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    asked = {word for each in of(page, "make") for word in each.words[1:] if re.fullmatch(r"[a-z-]+", word)}
    assert asked <= targets | {"make"}  # `make setup && make check`


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_scripts_exist(page: Path) -> None:
    scripts = {word for each in of(page, "python") for word in each.words[1:] if word.endswith(".py")}
    assert [script for script in scripts if not (ROOT / script).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_and_services_of_compose_exist(page: Path) -> None:
    services = set(re.findall(r"^  ([a-z-]+):", (ROOT / "compose.yaml").read_text(encoding="utf-8"), re.MULTILINE))
    for command in of(page, "docker"):
        words = command.words
        files = [file for option, file in pairwise(words) if option == "-f"]
        assert [file for file in files if not (ROOT / file).is_file()] == [], str(command)
        scaled = {word.split("=")[0] for word in words if re.fullmatch(r"[a-z-]+=\d+", word)}
        run = {words[words.index("run") + 2]} if words[1:3] == ("compose", "run") else set()
        assert scaled | run <= services, str(command)


def test_every_command_is_found_where_it_stands() -> None:
    page = (
        "Say `kvferry\nledger --json` or\n\n    kvferry up \\\n      --role both   # so\n\n```sh\nkvferry plan\n```\n"
    )
    found = [str(command) for command in commands(page, frozenset({"kvferry"}))]
    assert sorted(found) == ["kvferry ledger --json", "kvferry plan", "kvferry up --role both"]


def test_a_flag_of_another_command_is_none_of_this_ones() -> None:
    assert "--prefill" in flags_of("scale")
    assert "--max-workers" not in flags_of("scale")
    assert {"--requests-per-minute", "--file"} <= flags_of("key", "new")
    assert flags_of("sail") == frozenset()
