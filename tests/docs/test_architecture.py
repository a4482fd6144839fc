"""ARCHITECTURE.md names what there is, and its import table is the one that is checked."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
FOLDERS = {"kvferry_kernels": ROOT / "kernels" / "kvferry_kernels"}
NAMED = re.compile(r"`([\w.-]+(?:/[\w.-]*)+|[\w-]+\.(?:md|toml|txt))`")


@cache
def contracts(kind: str) -> list[dict[str, Any]]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return [each for each in config["contracts"] if each["type"] == kind]


@cache
def rooms() -> list[str]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    found: list[str] = config["root_packages"]
    return found


def table() -> dict[str, tuple[set[str], set[str]]]:
    """By room: what of ours it may import, and what it never imports."""
    section = PAGE.split("## Who may import whom")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return {names(room).pop(): (names(ours), names(never)) for room, ours, never in rows}


def names(cell: str) -> set[str]:
    return set(re.findall(r"`([\w.]+)`", cell))


def below(room: str) -> set[str]:
    """Rooms in the layers under this one's."""
    layers = [set(re.split(r"\s*\|\s*", layer)) for layer in contracts("layers")[0]["layers"]]
    level = next(i for i, layer in enumerate(layers) if room in layer)
    return set().union(*layers[level + 1 :])


def forbidden(room: str) -> set[str]:
    """What contracts about the whole room, indirect imports included, forbid it."""
    found = [each for each in contracts("forbidden") if not each.get("allow_indirect_imports")]
    return {name for each in found if room in each["source_modules"] for name in each["forbidden_modules"]}


def exceptions(room: str) -> set[str]:
    lines = [line for each in contracts("forbidden") for line in each.get("ignore_imports", ())]
    return {line.split(" -> ")[1] for line in lines if line.startswith(room + ".")}


def imported(room: str) -> set[str]:
    """Modules that files of the room import anywhere."""
    found: set[str] = set()
    for path in FOLDERS.get(room, ROOT / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
    return found


def test_every_file_and_folder_it_names_exists() -> None:
    named = set(NAMED.findall(PAGE))
    assert len(named) > 50
    assert not [name for name in named if not (ROOT / name).exists()]


def test_it_has_a_paragraph_and_a_row_for_every_room() -> None:
    folders = {"kernels" if room == "kvferry_kernels" else room for room in rooms()}
    assert set(re.findall(r"^- \*\*`(\w+)/`\*\*", PAGE, re.MULTILINE)) == folders
    assert set(table()) == set(rooms())


@pytest.mark.parametrize("room", rooms())
def test_a_room_may_import_what_the_contracts_let_it(room: str) -> None:
    ours, never = table()[room]
    assert ours == (below(room) - forbidden(room)) | exceptions(room)
    assert never == forbidden(room) - set(rooms())


@pytest.mark.parametrize("room", rooms())
def test_a_room_imports_no_more_than_the_table_says(room: str) -> None:
    allowed = {room, *table()[room][0]}
    ours = {name for name in imported(room) if name.split(".")[0] in rooms()}
    assert not [name for name in ours if name not in allowed and name.split(".")[0] not in allowed]


def test_only_the_engine_imports_the_kernels_and_only_runtime_imports_nats() -> None:
    users = {name: {room for room in rooms() if _uses(room, name)} for name in ("kvferry_kernels", "nats")}
    assert users == {"kvferry_kernels": {"engine", "kvferry_kernels"}, "nats": {"runtime"}}


def _uses(room: str, name: str) -> bool:
    return any(module.split(".")[0] == name for module in imported(room))


def test_a_request_goes_its_way_in_ten_steps() -> None:
    section = PAGE.split("## A request's way")[1].split("\n## ")[0]
    assert re.findall(r"^(\d+)\. ", section, re.MULTILINE) == [str(number) for number in range(1, 11)]


def test_the_messages_it_names_exist() -> None:
    from protocol import messages

    kinds = {kind.__name__ for kind in messages.TAGS.values()}
    section = PAGE.split("## A request's way")[1].split("\n## ")[0]
    named = set(re.findall(r"`([A-Z][A-Za-z]+)`", section))
    assert named <= kinds
    about_links = {"GroupOffer", "GroupWord", "GroupEnded", "GroupTold"}
    assert kinds - named <= {"WorkerStatus", "GatewayStatus", "Failed", "Part"} | about_links
