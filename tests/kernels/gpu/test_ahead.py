"""Every shipped kernel compiles for the cards that we name, and takes what the table of kernels/README.md says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "kernels" / "README.md"
ROW = re.compile(r"^\| (.+?) \| sm_(\d+) \| (\d+) \| (\d+) \| ([\d,]+) \|$", re.MULTILINE)
SLACK_REGISTERS = 8
"""The step in which registers are given to a thread."""

COMPILE_TIMEOUT_S = 540.0
AHEAD = "kvferry_kernels.gpu.ahead"
ATTENTION = "decode|merge|prefill"

Taken = dict[tuple[str, int], tuple[int, int, int]]
"""Registers, spilled bytes and shared memory by kernel and card."""


def taken(text: str) -> Taken:
    rows = ROW.findall(text)
    return {(name, int(card)): (int(a), int(b), int(c.replace(",", ""))) for name, card, a, b, c in rows}


def recorded() -> Taken:
    return taken(PAGE.read_text(encoding="utf-8"))


def compiled(*program: str, strict: bool = False) -> Taken:
    """What a program says that compiles kernels: in this process they are interpreted. ``strict``: it may not warn."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, *(["-W", "error"] if strict else []), "-m", *program]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return taken(done.stdout)


def excess(found: Taken) -> list[str]:
    """Where kernels take more than the page says, or what it doesn't know."""
    page, over = recorded(), []
    for key, (registers, spilled, shared) in found.items():
        most = page.get(key)
        if most is None or registers > most[0] + SLACK_REGISTERS or spilled > most[1] or shared > most[2]:
            over.append(f"{key}: {registers}, {spilled}, {shared}, but the page says {most}")
    return over


def test_attention_kernels_spill_nothing() -> None:
    attention = {key: spilled for key, (_, spilled, _) in recorded().items() if re.match(ATTENTION, key[0])}
    assert {card for _, card in attention} == {80, 90, 100}
    assert not any(attention.values())


def test_kernels_of_usual_shapes_compile_for_every_card_as_the_page_says() -> None:
    found = compiled(AHEAD, "bf16, 128(, ...8 cache)?$|block")
    assert {card for _, card in found} == {80, 90, 100}
    assert excess(found) == []


def test_what_works_on_rows_is_launched_as_it_is_shipped_and_says_all_that_triton_wants_to_know() -> None:
    found = compiled("tests.support.launch_without_card", "rows", strict=True)
    page = recorded()
    assert len(found) == 7
    assert {key: taken for key, taken in found.items() if taken != page[key]} == {}


@pytest.mark.long
def test_every_shipped_kernel_compiles_for_every_card_as_the_page_says() -> None:
    found = compiled(AHEAD)
    assert excess(found) == []
    assert set(found) == set(recorded())


@pytest.mark.long
def test_what_is_launched_is_what_is_shipped() -> None:
    found = compiled("tests.support.launch_without_card")
    assert {name.partition(",")[0] for name, _ in found} >= {"decode", "merge", "prefill", "write", "gather blocks"}
    page = recorded()
    assert {key: taken for key, taken in found.items() if taken != page[key]} == {}
