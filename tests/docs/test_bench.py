"""docs/bench.md names every flag and every workload of `kvferry bench`, and no others."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from bench.flags import add_flags
from bench.workload import NAMED

PAGE = (Path(__file__).parents[2] / "docs" / "bench.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def test_it_lists_every_flag_and_no_other() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    add_flags(parser)
    flags = {option for action in parser._actions for option in action.option_strings}
    assert set(re.findall(r"--[a-z][a-z-]*", section("Flags"))) == flags
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE)) <= flags


def test_it_lists_every_named_workload_with_its_lengths() -> None:
    rows = [line for line in section("Workloads").splitlines() if line.startswith("| `")]
    assert [re.findall(r"`(\w+)`", row)[0] for row in rows] == list(NAMED)
    for row, workload in zip(rows, NAMED.values(), strict=True):
        numbers = {int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", row)}
        lens = {workload.prompt_len, workload.output_len, workload.shared_prefix_len, workload.long_prompt_len}
        assert lens - {0} <= numbers
