"""docs/handover.md has the states, codes and numbers that the code has."""

import importlib
import re
from pathlib import Path

import pytest

from gateway.attempt import Attempt
from gateway.candidate import Route
from gateway.ladder import Word, judge
from gateway.outcome import OUTCOMES
from gateway.phase_clock import DECODE, PHASES, WHOLE
from gateway.settings import GatewaySettings
from kvtransfer.worker import ENDED_FROM_OUTSIDE
from protocol.errors import MEANINGS, Code
from protocol.handover import State
from protocol.messages import Peer
from runtime.settings import flag_of

PAGE = (Path(__file__).parents[2] / "docs" / "handover.md").read_text(encoding="utf-8")
UNITS = {"": 1.0, "s": 1.0, "ms": 0.001, "KiB": 1024.0, "MiB": 1024.0**2}


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(title: str, header: str) -> list[list[str]]:
    """Cells of the table under ``title`` whose first column is called ``header``."""
    lines = section(title).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {header} |"))
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def number(cell: str) -> float:
    value, _, unit = cell.partition(" ")
    return float(value) * UNITS[unit]


def value_of(name: str) -> float:
    """A module's constant, a settings class's default, or a class's own constant."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        if isinstance(found_class := getattr(found, parts[end]), type):
            fields = getattr(found_class, "__dataclass_fields__", {})
            if parts[end + 1] in fields:
                return float(fields[parts[end + 1]].default)
            return float(getattr(found_class, parts[end + 1]))
        return float(found_class)
    raise AssertionError(name)


def test_every_state_has_its_row_in_order() -> None:
    assert [row[0].strip("`") for row in rows("States of a hand-over", "state")] == [state.value for state in State]


def test_every_outcome_and_phase_is_named() -> None:
    attempts = section("Attempts")
    assert all(f"`{word}`" in attempts for word in (*OUTCOMES, *PHASES))


def test_every_code_has_its_row_with_its_status() -> None:
    shown = {row[0].strip("`"): int(row[1]) for row in rows("The ladder", "code")}
    assert shown == {code.value: MEANINGS[code].status for code in Code}


@pytest.mark.parametrize("row", rows("The ladder", "code"), ids=lambda row: str(row[0]).strip("`"))
def test_the_step_of_a_code_is_the_ladders(row: list[str]) -> None:
    code, step = Code(row[0].strip("`")), row[3]
    if step == "-":
        assert code is Code.NO_WORKER
        return
    prefill, decode = Peer("prefill-1", "e"), Peer("decode-1", "e")
    attempt = Attempt("req", 1, Route("split", prefill, decode), ())
    for worker in (prefill, decode):
        assert judge(attempt, Word(worker, DECODE, code, "")).name.lower().replace("_", " ") == step


@pytest.mark.parametrize("row", rows("Deadlines", "phase"), ids=lambda row: str(row[0]))
def test_a_phase_has_its_flag_and_default(row: list[str]) -> None:
    phase, flag, default = row[:3]
    assert phase in (*PHASES, WHOLE)
    field = flag.strip("`").removeprefix("--").replace("-", "_")
    assert flag_of(field) == flag.strip("`")
    assert number(default) == GatewaySettings.__dataclass_fields__[field].default


def test_every_phase_has_its_row() -> None:
    assert [row[0] for row in rows("Deadlines", "phase")] == [*PHASES, WHOLE]


@pytest.mark.parametrize("row", rows("Deadlines", "limit"), ids=lambda row: str(row[2]).strip("`"))
def test_a_limit_has_the_value_that_the_code_has(row: list[str]) -> None:
    assert number(row[1]) == pytest.approx(value_of(row[2].strip("`")))


def test_numbers_in_the_text_are_those_of_the_table() -> None:
    def default(name: str) -> str:
        return next(row[1] for row in rows("Deadlines", "limit") if row[2].endswith(f".{name}`"))

    assert f"renewed expires after {default('HOLD_S')}" in PAGE
    assert f"remembers for {default('REMEMBER_S')}" in PAGE
    assert f"a gap that is {default('gap_s')} old" in PAGE
    assert f"quiet for {default('QUIET_S')}" in PAGE
    assert f"Acks of {default('ack_s')}" in PAGE
    assert f"After {default('max_attempts')} of them" in PAGE
    assert f"up to {default('max_given_back')} times" in PAGE
    assert f"comes within {default('ask_s')}" in PAGE
    assert f"kept out for {default('FIRST_PAUSE_S')}, doubling to {default('LONGEST_PAUSE_S')}" in PAGE
    assert f"not done {default('GIVE_BACK_S')} before" in PAGE
    assert f"it has landed, {default('MAX_SENDS')} sends at most" in PAGE
    assert f"gateway, {default('cancel_s')} at most" in PAGE
    assert f"P, {default('FINISHED_S')} at most" in PAGE


def test_the_signals_that_come_from_outside_are_named() -> None:
    assert set(re.findall(r"SIG[A-Z]+", section("Who crashed"))) - {"SIGSEGV"} == {
        number.name for number in ENDED_FROM_OUTSIDE
    }
