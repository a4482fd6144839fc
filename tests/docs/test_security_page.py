"""SECURITY.md names tests that exist, every test that plays the attacker, and paths, flags and places as they are."""

from __future__ import annotations

import re

import pytest

from gateway.front import OPEN_ROUTES
from tests.docs.blocks import ROOT
from tests.docs.test_commands import flags_of
from tests.security.test_no_remote_code import BETWEEN_OUR_OWN_HALVES

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
COLUMNS = 4


def rows() -> list[list[str]]:
    """Cells of the table of defenses."""
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("row", rows(), ids=lambda row: str(row[0]))
def test_each_asset_has_a_threat_a_defense_and_tests_that_exist(row: list[str]) -> None:
    assert len(row) == COLUMNS
    assert all(row)
    files = re.findall(r"`(tests/[\w/]+\.py)`", row[3])
    assert files
    for name in files:
        assert re.search(r"^(?:async )?def test_", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE), name


def test_every_attack_is_named() -> None:
    attacks = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / "security").glob("test_*.py")}
    attacks |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*attack*.py")}
    assert attacks <= set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE))


def test_open_paths_are_those_of_the_gateway() -> None:
    assert set(re.findall(r"`(/[a-z]+)`", rows()[0][2])) == OPEN_ROUTES


def test_the_places_of_pickle_are_those_that_there_are() -> None:
    section = PAGE.split("**No code from outside.**")[1].split("\n## ")[0]
    assert set(re.findall(r"`([\w/]+\.py)`", section)) == BETWEEN_OUR_OWN_HALVES


def test_flags_that_harden_exist() -> None:
    section = PAGE.split("## Making it harder")[1]
    assert set(re.findall(r"`(--[a-z-]+)", section)) <= flags_of("up") | flags_of("secrets")
